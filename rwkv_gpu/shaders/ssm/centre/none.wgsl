fn centre_of(_first: u32, _lane: u32) -> f32 { return 0.0; }
