// The answer of attention is as it is.
fn gated(y: vec4f, _i: u32) -> vec4f { return y; }
