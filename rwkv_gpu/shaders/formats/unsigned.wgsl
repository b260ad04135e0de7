// Bytes that have no sign to floats: one conversion each, where a GPU picks a byte of a word by itself. What is counted
// from a middle, d · (n - middle), is d · n + m with an m that is exact.
fn centred(d: f32, middle: f32) -> vec2f { return vec2f(d, -middle * d); }

fn floats(four: Four) -> vec4f {
    return vec4f(f32(four & 255u), f32((four >> 8u) & 255u), f32((four >> 16u) & 255u), f32(four >> 24u));
}
