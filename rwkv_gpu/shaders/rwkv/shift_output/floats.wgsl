// Mixed rows are floats and nothing else.
fn put(_xx: vec4f, _shift: vec4f, _t: u32, _d: u32) {}
