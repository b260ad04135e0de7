// Answers are added as they are.
fn share_at(_n: u32) -> f32 { return 1.0; }
