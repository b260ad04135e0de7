fn gated(token: u32, y: vec4f) -> vec4f { return y; }
