// The first layer has no v to mix in.
fn first_of(_token: u32) -> vec4f { return vec4f(); }
