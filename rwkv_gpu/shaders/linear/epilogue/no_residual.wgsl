fn residual_at(_i: u32) -> f32 { return 0.0; }
fn kept_at(_i: u32) -> f32 { return 0.0; }
fn keep(_i: u32, _x: f32) {}
