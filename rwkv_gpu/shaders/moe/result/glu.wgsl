// y[n, m] = glu(G_e[m] · x, U_e[m] · x)
// needs glu: glu
const MATRICES = 2u;

fn result(gate: f32, up: f32, i: u32) -> f32 { return glu(gate, up); }
