fn answer_scale(_e: u32) -> f32 { return 1.0; }
