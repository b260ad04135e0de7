fn input_scale(_n: u32) -> f32 { return 1.0; }
