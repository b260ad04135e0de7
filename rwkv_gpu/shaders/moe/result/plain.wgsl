// y[n, m] = then(W_e[m] · x)
// needs lib/activation: activation
const MATRICES = 1u;

fn result(dot: f32, _second: f32, i: u32) -> f32 { return activation(THEN, dot); }
