// Four weights of a run as float16, in the order of `round_rows`
// needs decoded weights: four_weights
// needs format: fours_of
fn four_of(raw: Raw, i: u32, four: u32, scale: vec2f) -> vec4<f16> {
    var q = fours_of(raw, i);
    return four_weights(q[four], scale);
}
