fn biased(y: f32, m: u32) -> f32 { return y; }
