@group(0) @binding(5) var<storage, read> residual: array<f32>;  // as y

fn with_residual(y: f32, i: u32) -> f32 { return y + residual[i]; }
