fn note(_d: u32, _value: vec4f) {}
