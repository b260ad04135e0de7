fn unary(x: f32) -> f32 { return NUMBER * x; }
