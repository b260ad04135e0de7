fn sum_scale(_matrix: u32, _expert: u32) -> f32 { return 1.0; }
