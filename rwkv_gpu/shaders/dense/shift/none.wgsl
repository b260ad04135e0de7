// A norm without bias.
fn shift_at(_d: u32) -> vec4f { return vec4f(); }
