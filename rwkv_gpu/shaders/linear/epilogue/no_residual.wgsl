fn residual_at(_i: u32) -> f32 { return 0.0; }
fn state_value(_i: u32) -> f32 { return 0.0; }
fn save_state(_i: u32, _x: f32) {}
