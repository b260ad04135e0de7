// x, B and C of one row for each sequence, by a convolution over the rows before, which are a state of their own.
//
// Several workgroups read the same channels of that state, and one of them replaces it: a step writes another state than
// the one that it reads.
@group(0) @binding(1) var<storage, read_write> past: array<vec4f>;      // [states, PAST, ROW4], the oldest first

const TAPS_AT = 3u * H;                 // in the parameters: [4 ROW4, PAST + 1], then the bias [4 ROW4]
const BIAS_AT = TAPS_AT + 4u * ROW4 * (PAST + 1u);

// A vec4 of a row; `own` says whether this workgroup replaces what it reads.
fn xbc_at(segment: Segment, row: u32, c: u32, own: bool) -> vec4f {
    let at = row * STRIDE + FIRST + 4u * c;
    let here = vec4f(projected[at], projected[at + 1u], projected[at + 2u], projected[at + 3u]);
    let bias = BIAS_AT + 4u * c;
    var sum = vec4f(parameters[bias], parameters[bias + 1u], parameters[bias + 2u], parameters[bias + 3u]);
    sum += here * taps_of(c, PAST);
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
    return vec4f(
        parameters[at], parameters[at + PAST + 1u], parameters[at + 2u * (PAST + 1u)], parameters[at + 3u * (PAST + 1u)],
    );
}
