// A row of x lies there as it is.
// needs staging: stage
fn prefetch_row(_n: u32, _lane: u32) {}

fn stage_row(start: u32, lane: u32) -> f32 { return stage(start, K, lane); }
