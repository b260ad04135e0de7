// y[n, m] = W_e[m] · x
const MATRICES = 1u;

fn result(dot: f32, _second: f32, i: u32) -> f32 { return dot; }
