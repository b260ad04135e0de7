// Formats of two bytes: four weights are two words of a run's vec4s.
fn in_pairs(x: array<vec4u, 4>) -> array<Four, RUN / 4u> {
    return array<Four, RUN / 4u>(x[0].xy, x[0].zw, x[1].xy, x[1].zw, x[2].xy, x[2].zw, x[3].xy, x[3].zw);
}
