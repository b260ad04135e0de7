// x = d (q - 8), q four bits: 8 dims are one word.
// needs attention/eight: Eight
const WORDS_8 = 1u;

// The scale of dims of which this is the number of largest size.
fn scale_for(largest: f32) -> f32 { return largest / -8.0; }

fn decoded(word: u32, _same: u32, d: f32) -> Eight {
    let low = (vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u);
    let high = (vec4u(word) >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u);
    return Eight(d * (vec4f(low) - 8.0), d * (vec4f(high) - 8.0));
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
