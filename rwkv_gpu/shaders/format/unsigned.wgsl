// Bytes that have no sign to floats: one conversion each, where a GPU picks a byte of a word by itself.
fn floats(four: Four) -> vec4f {
    return vec4f(f32(four & 255u), f32((four >> 8u) & 255u), f32((four >> 16u) & 255u), f32(four >> 24u));
}
