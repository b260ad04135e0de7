// MXFP4 for kernels that multiply floats: weight = 2^(e - 113) · h(n).      x and y as in `mxfp4`
//
// A number of 4 bits differs from a float16 only in the exponent bias. Its sign, exponent and mantissa are moved to
// their places in a float16 h, which is then 2^14 times too small. That takes half as many operations as decoding to
// bytes. Scales above 2^113 are clamped to it.
// needs words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
}

alias Four = vec2u;     // float16: 0 and 2, 1 and 3

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i / 4u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let e = (raw.y >> (8u * (i % 4u))) & 0xffu;
    return vec2f(bitcast<f32>(min(e + 14u, 254u) << 23u), 0.0);
}

fn fours_of(raw: Raw, _i: u32) -> array<Four, 8> {
    var fours: array<Four, 8>;
    for (var k = 0u; k < 4u; k++) {
        let v = raw.x[k];
        fours[k] = (vec2u(v << 9u, v << 1u) & vec2u(0x0e000e00u)) | (vec2u(v << 12u, v << 4u) & vec2u(0x80008000u));
        fours[k + 4u] = (vec2u(v << 5u, v >> 3u) & vec2u(0x0e000e00u)) | (vec2u(v << 8u, v) & vec2u(0x80008000u));
    }
    return fours;
}

fn floats(four: Four) -> vec4f {
    let even = unpack2x16float(four.x);
    let odd = unpack2x16float(four.y);
    return vec4f(even.x, odd.x, even.y, odd.y);
}
