// Four weights d · q + m as float16, of float formats, in the order of `round_rows`: 0, 2, 1, 3
// needs format: floats
fn four_weights(four: Four, scale: vec2f) -> vec4<f16> {
    return vec4<f16>(fma(vec4f(scale.x), floats(four).xzyw, vec4f(scale.y)));
}
