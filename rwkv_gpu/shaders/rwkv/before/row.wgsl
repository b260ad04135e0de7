// The row before, as an op has made it.
@group(0) @binding(2) var<storage, read> before: array<f32>;    // [T, D]

fn before_at(t: u32, d: u32) -> f32 { return before[t * D + d]; }
