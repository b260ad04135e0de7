// What is normed is not rounded.
fn look_at(_value: f32, _d: u32) {}

fn round_row(_t: u32, _lane: u32) {}
