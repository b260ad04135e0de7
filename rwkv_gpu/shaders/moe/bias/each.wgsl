// Of the rows of all experts, matrix by matrix.
@group(0) @binding(10) var<storage, read> biases: array<f32>;   // [MATRICES, EXPERTS, M]

const BIASED = true;

fn bias_of(matrix: u32, row: u32) -> f32 { return biases[matrix * EXPERTS * M + row]; }
