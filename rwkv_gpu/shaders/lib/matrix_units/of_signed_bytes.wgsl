// Four weights d · q + m as float16, of bytes q with a sign, in the order of `round_rows`: 0, 2, 1, 3
//
// As `of_bytes`, of q + 128.
fn four_weights(four: Four, scale: vec2f) -> vec4<f16> {
    let bytes = four ^ 0x80808080u;
    let exponent = 0x64006400u | (step.rows >> 31u);
    let even = vec2<f16>(unpack2x16float((bytes & 0x00ff00ffu) | exponent));
    let odd = vec2<f16>(unpack2x16float(((bytes >> 8u) & 0x00ff00ffu) | exponent));
    let q = vec4<f16>(even, odd) - vec4<f16>(f16(1152.0));
    return fma(vec4<f16>(f16(scale.x)), q, vec4<f16>(f16(scale.y)));
}
