fn first_of(_d: u32) -> vec4f { return vec4f(); }
