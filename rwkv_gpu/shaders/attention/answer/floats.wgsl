// The answer is floats.
fn answer(i: u32, value: vec4f) { y[i] = value; }
