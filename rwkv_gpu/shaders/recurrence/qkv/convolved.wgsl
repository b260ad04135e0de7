// q, k and v of one row for each sequence, by a convolution over the rows before, which are a state of their own.
//
// Several heads may read the same channels of that state, and one of them replaces it: a step writes another state than the
// one that it reads.
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;                     // [T, ROW4], before the convolution
@group(0) @binding(9) var<storage, read_write> past: array<vec4f>;              // [states, PAST, ROW4], the oldest first

// A vec4 of q (0), k (1) or v (2); `own` says whether this head replaces what it reads.
fn qkv_at(row: u32, which: u32, d: u32, own: bool) -> vec4f {
    let segment = segments[row];
    let c = which * K4 + d;
    let here = qkv[row * ROW4 + c];
    var sum = here * taps_of(c, PAST);
    for (var i = 0u; i < PAST; i++) {
        var before = vec4f();
        if segment.start > 0u {
            before = past[(segment.source * PAST + i) * ROW4 + c];
        }
        sum += before * taps_of(c, i);
        if own && i > 0u {
            past[(segment.written * PAST + i - 1u) * ROW4 + c] = before;
        }
    }
    if own {
        past[(segment.written * PAST + PAST - 1u) * ROW4 + c] = here;
    }
    return sum / (1.0 + exp(-sum));
}

// A tap of four channels.
fn taps_of(c: u32, i: u32) -> vec4f {
    let at = TAPS_AT + 4u * c * (PAST + 1u) + i;
    return vec4f(vectors[at], vectors[at + PAST + 1u], vectors[at + 2u * (PAST + 1u)], vectors[at + 3u * (PAST + 1u)]);
}
