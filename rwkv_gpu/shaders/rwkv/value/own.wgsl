// The first layer's v, as it is.
fn value(token: u32, v: vec4f) -> vec4f { return v; }
