// A norm with a weight.
@group(0) @binding(2) var<storage, read> weight: array<f32>;    // [D]

fn gain_at(d: u32) -> f32 { return weight[d]; }
