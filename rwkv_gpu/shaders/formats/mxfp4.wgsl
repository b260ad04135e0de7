// MXFP4: weight = 2^(e - 128) · 2 e2m1(n).      x: 16 bytes per run, byte j = n[j] | n[j+16] << 4; y: e as byte per run
// needs formats/e2m1: sizes, with_signs; formats/packed: byte_of, in_order; words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i / 4u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let e = byte_of(raw.y, i);
    // The two smallest scales are below the normal floats.
    let bits = select((e - 1u) << 23u, 0x00200000u << (e & 1u), e < 2u);
    return vec2f(bitcast<f32>(bits), 0.0);
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    let size = sizes(raw.x);
    return in_order(with_signs(size, raw.x), with_signs(size >> vec4u(4u), raw.x >> vec4u(4u)));
}
