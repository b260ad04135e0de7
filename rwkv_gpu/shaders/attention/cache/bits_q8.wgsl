// x = d q, q a signed byte: 8 dims are two words.
// needs attention/eight: Eight
const WORDS_8 = 2u;

// The scale of dims of which this is the number of largest size.
fn scale_for(largest: f32) -> f32 { return abs(largest) / 127.0; }

fn decoded(low: u32, high: u32, d: f32) -> Eight {
    return Eight(d * vec4f(unpack4xI8(low)), d * vec4f(unpack4xI8(high)));
}

fn encoded(x: Eight, d: f32) -> vec2u {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    return vec2u(four_bytes(x.low * inverse), four_bytes(x.high * inverse));
}

fn four_bytes(x: vec4f) -> u32 {
    let q = vec4u(vec4i(clamp(round(x), vec4f(-127.0), vec4f(127.0)))) & vec4u(255u);
    return q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
}
