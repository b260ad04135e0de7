// Another workgroup writes the row down.
fn pass_on(_d: u32, _value: vec4f) {}
