// x within NUMBER on either side.
fn unary(x: f32) -> f32 { return clamp(x, -NUMBER, NUMBER); }
