// x as it is.
const NORMED = false;

fn gained(values: vec4f, _k: u32) -> vec4f { return values; }
fn root(_squares: f32, _width: u32) -> f32 { return 1.0; }
