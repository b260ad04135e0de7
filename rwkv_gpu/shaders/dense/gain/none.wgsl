// A norm without a weight.
fn gain_at(_d: u32) -> f32 { return 1.0; }
