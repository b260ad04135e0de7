// Heads turn as they are.
fn norm_weight(_d: u32) -> f32 { return 1.0; }

fn head_scale(_start: u32) -> f32 { return 1.0; }
