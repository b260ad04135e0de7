// x = d q, q a signed byte: 8 dims are two words.
// needs attention/eight: Eight
const WORDS_8 = 2u;
const QUANT_OFFSET = 0;   // what a stored byte is larger by than its quant

// The scale of dims of which this is the number of largest size.
fn scale_for(largest: f32) -> f32 { return abs(largest) / 127.0; }

// Bytes become the last or the second last byte of a float, 2^23 + q + 128 or 2^15 + q + 128: where converting integers is slow,
// this is several times as fast.
fn quants_of(low: u32, high: u32) -> Eight { return Eight(four_of(low), four_of(high)); }

// The same as signed bytes, and 8 numbers in their order.
fn bytes_of(words: vec2u) -> vec2u { return words; }

fn in_byte_order(low: vec4f, high: vec4f) -> Eight { return Eight(low, high); }

fn four_of(word: u32) -> vec4f {
    let x = word ^ 0x80808080u;
    let y = x >> 16u;
    let bits = (vec4u(x, x, y, y) & vec4u(0xffu, 0xff00u, 0xffu, 0xff00u)) | vec4u(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u);
    return bitcast<vec4f>(bits) - vec4f(8388736.0, 32896.0, 8388736.0, 32896.0);
}

fn encoded(x: Eight, d: f32) -> vec2u {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    return vec2u(four_bytes(x.low * inverse), four_bytes(x.high * inverse));
}

fn four_bytes(x: vec4f) -> u32 {
    let q = vec4u(vec4i(clamp(round(x), vec4f(-127.0), vec4f(127.0)))) & vec4u(255u);
    return q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
}
