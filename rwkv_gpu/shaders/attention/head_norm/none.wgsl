// Heads turn as they are.
const NORMED = false;

fn norm_weight(_d: u32) -> f32 { return 1.0; }

fn head_scale(_start: u32) -> f32 { return 1.0; }

fn root_of(_squares: f32) -> f32 { return 1.0; }
