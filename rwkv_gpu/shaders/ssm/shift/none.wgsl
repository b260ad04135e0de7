fn shift_at(_d: u32) -> f32 { return 0.0; }
