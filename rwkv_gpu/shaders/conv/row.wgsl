// silu of a convolution: four channels of one row per sequence, over the previous rows, which are a separate state.
//
// Several workgroups may read the same channels of that state. One of them replaces it, which is safe because a step
// writes to another place than it reads.
// The caller binds that state as `past`.
// needs xbc or qkv: tap_at

// `here` is the row before the convolution, `own` is true if this workgroup replaces the state that it reads.
fn convolved(segment: Segment, c: u32, here: vec4f, bias: vec4f, own: bool) -> vec4f {
    var before: array<vec4f, PAST>;     // all loads are issued before the first store
    if segment.start > 0u {
        for (var i = 0u; i < PAST; i++) {
            before[i] = past[(segment.source * PAST + i) * ROW4 + c];
        }
    }
    var sum = bias + here * taps_of(c, PAST);
    for (var i = 0u; i < PAST; i++) {
        sum += before[i] * taps_of(c, i);
    }
    if own {
        for (var i = 1u; i < PAST; i++) {
            past[(segment.written * PAST + i - 1u) * ROW4 + c] = before[i];
        }
        past[(segment.written * PAST + PAST - 1u) * ROW4 + c] = here;
    }
    return sum / (1.0 + exp(-sum));
}

// The weights of one tap for four channels.
fn taps_of(c: u32, i: u32) -> vec4f {
    let at = 4u * c * (PAST + 1u) + i;
    return vec4f(tap_at(at), tap_at(at + PAST + 1u), tap_at(at + 2u * (PAST + 1u)), tap_at(at + 3u * (PAST + 1u)));
}
