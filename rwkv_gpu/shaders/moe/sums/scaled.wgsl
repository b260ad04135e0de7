// Of all experts, matrix by matrix.
@group(0) @binding(14) var<storage, read> sum_scales: array<f32>;   // [MATRICES, EXPERTS]

fn sum_scale(matrix: u32, expert: u32) -> f32 { return sum_scales[matrix * EXPERTS + expert]; }
