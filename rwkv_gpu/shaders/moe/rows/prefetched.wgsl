// A row of x comes while experts are ranked: which are chosen does not change it. Weights then come while it becomes integers.
// needs moe/tiles: input_at
// needs rows: x4
// needs staging: pad, put_four
const OWN_FOURS = (K / 4u + WG - 1u) / WG;  // vec4s of a lane

var<private> own_fours: array<vec4f, OWN_FOURS>;

// For choice n, in a branch, as compilers move other loads down to where they are needed.
fn prefetch_row(n: u32, lane: u32) {
    if step.bucket > 0u {
        for (var i = 0u; i < OWN_FOURS; i++) {
            own_fours[i] = x4(input_at(n), 4u * min(i * WG + lane, K / 4u - 1u), K);
        }
    }
}

fn stage_row(_start: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var i = 0u; i < OWN_FOURS; i++) {
        squares += put_four(own_fours[i], i * WG + lane, K / 4u);
    }
    pad(K / 4u, lane);
    return squares;
}
