// MXFP4: weight = 2^(e - 128) · 2 e2m1(n).      x: 16 bytes a run, byte j = n[j] | n[j+16] << 4; y: e as byte a run
// needs formats/packed: byte_of, in_order
// needs words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i / 4u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let e = byte_of(raw.y, i);
    // The two least are below the normal floats.
    let bits = select((e - 1u) << 23u, 0x00200000u << (e & 1u), e < 2u);
    return vec2f(bitcast<f32>(bits), 0.0);
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    return in_order(doubled(raw.x), doubled(raw.x >> vec4u(4u)));
}

// 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, in each byte, by its low nibble: sign, 2 bits of exponent, 1 of mantissa
fn doubled(n: vec4u) -> vec4u {
    let one = vec4u(0x01010101u);
    let top = (n >> vec4u(2u)) & one;
    let bottom = (n >> vec4u(1u)) & one;
    let mantissa = (n & one) | ((top | bottom) << vec4u(1u));       // with its leading one, unless subnormal
    let twice = mantissa + (mantissa & ((top << vec4u(1u)) | top));
    let both = top & bottom;
    let size = twice + (twice & ((both << vec4u(3u)) - both));
    // -size is (size ^ 0x7f) + 1 with the top bit turned: no carry leaves a byte
    let sign = (n >> vec4u(3u)) & one;
    let top_bit = sign << vec4u(7u);
    return ((size ^ (top_bit - sign)) + sign) ^ top_bit;
}
