// Heads of a model without rotary positions, as they are.
fn partner(d: u32) -> u32 { return d; }

fn rotated(_position: u32, _d: u32, x: f32, _other: f32) -> f32 { return x; }
