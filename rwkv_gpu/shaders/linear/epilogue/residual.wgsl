@group(0) @binding(5) var<storage, read> residual: array<f32>;  // as y

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(_i: u32) -> f32 { return 0.0; }
fn save_state(_i: u32, _x: f32) {}
