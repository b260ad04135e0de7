// y[n, m] = then(G_e[m] · x) * (U_e[m] · x)
// needs lib/activation: activation
const MATRICES = 2u;

fn result(gate: f32, up: f32, i: u32) -> f32 { return activation(THEN, gate) * up; }
