// Mixed rows are floats and nothing else.
const ROUNDS = false;

fn begin(_most: f32, _t: u32, _lane: u32) {}

fn put(_xx: vec4f, _shift: vec4f, _t: u32, _d: u32) {}
