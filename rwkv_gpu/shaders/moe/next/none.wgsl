// What becomes of sums is floats and nothing else.
fn keep(_i: u32, _value: f32) {}
