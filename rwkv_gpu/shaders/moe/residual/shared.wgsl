// What is added, and the answer of a shared expert times its gate.
@group(0) @binding(5) var<storage, read> residual: array<f32>;      // [T, M]
@group(0) @binding(8) var<storage, read> shared_rows: array<f32>;   // [T, M]
@group(0) @binding(9) var<storage, read> shared_gates: array<f32>;  // [T]

fn residual_at(i: u32) -> f32 { return fma(shared_rows[i], shared_gates[i / M], residual[i]); }
