fn store_normed(_d: u32, _value: vec4f) {}
