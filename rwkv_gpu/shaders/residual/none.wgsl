fn with_residual(y: f32, t: u32, m: u32) -> f32 { return y; }
