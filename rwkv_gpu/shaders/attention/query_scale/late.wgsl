// Queries of positions beyond START have a larger scale: times ln(position) / ln(START).
fn query_scale(position: u32) -> f32 { return SCALE * (log(f32(max(position, START))) / log(f32(START))); }
