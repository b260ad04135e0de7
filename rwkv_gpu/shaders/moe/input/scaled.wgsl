// The input of an expert is multiplied by its share: what a matrix makes of it is, too.
@group(0) @binding(11) var<storage, read> input_scales: array<f32>;     // [T * USED]

fn input_scale(n: u32) -> f32 { return input_scales[n]; }
