// Bytes with a sign to floats.
fn floats(four: Four) -> vec4f { return vec4f(unpack4xI8(four)); }
