// A run by its number, loaded and decoded at once: (d, m), and the q as floats.
// needs format: floats, fours_of, run_raw, scale_of
fn run_scale(i: u32) -> vec2f { return scale_of(run_raw(i), i); }

fn run_quants(i: u32) -> array<vec4f, RUN / 4u> {
    var fours = fours_of(run_raw(i), i);
    var q: array<vec4f, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        q[j] = floats(fours[j]);
    }
    return q;
}
