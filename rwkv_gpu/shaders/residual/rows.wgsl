@group(0) @binding(5) var<storage, read> residual: array<f32>;  // [T, M]

fn with_residual(y: f32, t: u32, m: u32) -> f32 { return y + residual[t * M + m]; }
