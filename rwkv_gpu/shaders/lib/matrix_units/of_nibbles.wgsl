// Four weights d · n + m of a run as float16, in the order of `round_rows`: 0, 2, 1, 3
//
// n is 4 bits of raw.x, byte j of which is n[j] | n[j+16] << 4. In the low bits of the float16 1024 it makes 1024 + n, in
// the next four of 64 it makes 64 + n: no byte has to be taken apart, and two weights are decoded at a time. To the compiler
// these floats are no constants (`step.rows` is below 2^31), as in `of_bytes`.
fn four_of(raw: Raw, _i: u32, four: u32, scale: vec2f) -> vec4<f16> {
    let high = four >= 4u;
    let mask = select(0x000f000fu, 0x00f000f0u, high);
    let exponent = select(0x64006400u, 0x54005400u, high) | (step.rows >> 31u);
    let v = raw.x[four % 4u];
    let even = vec2<f16>(unpack2x16float((v & mask) | exponent));
    let odd = vec2<f16>(unpack2x16float(((v >> 8u) & mask) | exponent));
    let n = vec4<f16>(even, odd) - vec4<f16>(select(f16(1024.0), f16(64.0), high));
    return fma(vec4<f16>(f16(scale.x)), n, vec4<f16>(f16(scale.y)));
}
