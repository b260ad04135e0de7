// x = d (q - 8), q four bits: 8 dims are one word.
// needs attention/eight: Eight
const WORDS_8 = 1u;
const QUANT_OFFSET = 8;   // what a stored number is larger by than its quant

// The scale of dims of which this is the number of largest size.
fn scale_for(largest: f32) -> f32 { return largest / -8.0; }

// Bits become some of a float, 2^23 + q to 2^11 + q: where converting integers is slow, this is several times as fast.
fn quants_of(word: u32, _same: u32) -> Eight { return Eight(four_of(word), four_of(word >> 16u)); }

// The same as bytes, with their offset, and 8 numbers in their order.
fn bytes_of(words: vec2u) -> vec2u { return vec2u(words.x, words.x >> 4u) & vec2u(0x0f0f0f0fu); }

fn in_byte_order(low: vec4f, high: vec4f) -> Eight {
    return Eight(vec4f(low.xz, high.xz), vec4f(low.yw, high.yw));
}

fn four_of(x: u32) -> vec4f {
    let bits = (vec4u(x) & vec4u(0xfu, 0xf0u, 0xf00u, 0xf000u)) | vec4u(0x4b000000u, 0x49000000u, 0x47000000u, 0x45000000u);
    return bitcast<vec4f>(bits) - vec4f(8388616.0, 524296.0, 32776.0, 2056.0);
}

fn encoded(x: Eight, d: f32) -> vec2u {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    let low = vec4u(clamp(round(x.low * inverse) + 8.0, vec4f(), vec4f(15.0)));
    let high = vec4u(clamp(round(x.high * inverse) + 8.0, vec4f(), vec4f(15.0)));
    return vec2u(
        low.x | (low.y << 4u) | (low.z << 8u) | (low.w << 12u)
            | (high.x << 16u) | (high.y << 20u) | (high.z << 24u) | (high.w << 28u),
        0u,
    );
}
