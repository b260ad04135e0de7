// NVFP4: weight = e · 2 e2m1(n), e = half of a float of 4 bits of exponent and 3 of mantissa, with bias 7.
// x: two words per run, byte j = n[j] | n[j+8] << 4; y: e as byte per run
// needs formats/e2m1: sizes, with_signs; formats/packed: byte_of; words: word_at
const RUN = 16u;

struct Raw {
    x: vec2u,
    y: u32,
}

fn run_raw(i: u32) -> Raw {
    return Raw(vec2u(word_at(plane.x, 2u * i), word_at(plane.x, 2u * i + 1u)), word_at(plane.y, i / 4u));
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let e = byte_of(raw.y, i) & 0x7fu;
    let normal = bitcast<f32>((e << 20u) + (119u << 23u));      // 2^(exponent - 8) · 1.mantissa
    let subnormal = f32(e) * 0.0009765625;
    return vec2f(select(select(normal, subnormal, e < 8u), 0.0, byte_of(raw.y, i) == 0x7fu), 0.0);
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 4> {
    let size = sizes(vec4u(raw.x, 0u, 0u)).xy;
    let q = with_signs(vec4u(size, size >> vec2u(4u)), vec4u(raw.x, raw.x >> vec2u(4u)));
    return array<u32, 4>(q.x, q.y, q.z, q.w);
}
