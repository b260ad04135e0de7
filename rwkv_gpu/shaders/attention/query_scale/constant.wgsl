// Every query has the same scale.
fn query_scale(_position: u32) -> f32 { return SCALE; }
