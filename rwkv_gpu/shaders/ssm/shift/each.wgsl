@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [G, D / G]

fn shift_at(d: u32) -> f32 { return bias[d]; }
