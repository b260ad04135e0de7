// The weights of a run of MXFP4 as float16, in the order of `round_rows`: of each four 0, 2, 1, 3
//
// A number of 4 bits is one of 16 but for its bias: its sign, exponent and mantissa go where those of a float16 lie, which
// is then 2^14 times as small. Scales are of twice the number.
fn weights_of(raw: Raw, _i: u32, scale: vec2f) -> array<vec4<f16>, 8> {
    let by = vec4<f16>(f16(2.0 * scale.x));
    var found: array<vec4<f16>, 8>;
    for (var k = 0u; k < 4u; k++) {
        let v = raw.x[k];
        found[k] = by * four_of(v << 9u, v << 12u, v << 1u, v << 4u);
        found[k + 4u] = by * four_of(v << 5u, v << 8u, v >> 3u, v);
    }
    return found;
}

fn four_of(even: u32, even_signs: u32, odd: u32, odd_signs: u32) -> vec4<f16> {
    let evens = vec2<f16>(unpack2x16float((even & 0x0e000e00u) | (even_signs & 0x80008000u)));
    let odds = vec2<f16>(unpack2x16float((odd & 0x0e000e00u) | (odd_signs & 0x80008000u)));
    return vec4<f16>(evens, odds) * vec4<f16>(f16(16384.0));
}
