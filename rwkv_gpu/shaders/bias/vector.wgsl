@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [M]

fn biased(y: f32, i: u32) -> f32 { return y + bias[i]; }
