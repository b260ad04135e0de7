fn gate_of(token: u32) -> vec4f { return vec4f(1.0); }
