fn biased(y: f32, i: u32) -> f32 { return y; }
