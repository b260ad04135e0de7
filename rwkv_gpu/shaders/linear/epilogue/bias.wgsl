@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [M]

fn bias_at(i: u32, _t: u32) -> f32 { return bias[i]; }
fn bias_rest(_i: u32, _t: u32) -> f32 { return 0.0; }
