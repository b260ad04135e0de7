// Four weights d · q + m as float16, of bytes q without a sign, in the order of `round_rows`: 0, 2, 1, 3
//
// A byte q in the low bits of the float16 1024 makes 1024 + q: no conversion, and two weights at a time. To the compiler that
// float is no constant (`step.rows` is below 2^31): NVIDIA's has one instruction for `&` and `|` where the one takes a constant
// and the other a register, and needs two where both take constants.
fn four_weights(four: Four, scale: vec2f) -> vec4<f16> {
    let exponent = 0x64006400u | (step.rows >> 31u);
    let even = vec2<f16>(unpack2x16float((four & 0x00ff00ffu) | exponent));
    let odd = vec2<f16>(unpack2x16float(((four >> 8u) & 0x00ff00ffu) | exponent));
    let q = vec4<f16>(even, odd) - vec4<f16>(f16(1024.0));
    return fma(vec4<f16>(f16(scale.x)), q, vec4<f16>(f16(scale.y)));
}
