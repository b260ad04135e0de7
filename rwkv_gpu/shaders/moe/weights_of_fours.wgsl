// The weights of a run as float16, in the order of `round_rows`.
// needs decoded weights: four_weights
// needs format: fours_of
fn weights_of(raw: Raw, i: u32, scale: vec2f) -> array<vec4<f16>, RUN / 4u> {
    var q = fours_of(raw, i);
    var found: array<vec4<f16>, RUN / 4u>;
    for (var n = 0u; n < RUN / 4u; n++) {
        found[n] = four_weights(q[n], scale);
    }
    return found;
}
