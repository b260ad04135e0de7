// y[n, m] = then(gate[n, m]) * (W_e[m] · x)
// needs lib/activation: activation
const MATRICES = 1u;

@group(0) @binding(7) var<storage, read> gate: array<f32>;      // as y

fn result(dot: f32, _second: f32, i: u32) -> f32 { return activation(THEN, gate[i]) * dot; }
