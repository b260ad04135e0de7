// y is floats and nothing else.
fn write_y(t: u32, c: u32, value: f32) { y[t * C + c] = value; }
