// The row x of a step that has no other, convolved over the rows before it while it is read:
// g · sum over i of w[c, i] · before[i, c], where x holds f, g and h, and the newest row before is f · h
//
// Every workgroup reads the state, and the first one replaces it: a step writes another state than the one that it reads.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;           // f, g and h, [C / 4] each
@group(0) @binding(9) var<storage, read> taps: array<vec4f>;        // [C, TAPS] in fours
@group(0) @binding(10) var<storage, read_write> past: array<vec4f>; // [states, PAST, C / 4], the oldest first
@group(0) @binding(11) var<uniform> segment: Segment;

const READS_X_EARLY = true;
const TAPS = PAST + 1u;
const C4 = C / 4u;

const_assert C % 4u == 0u;

fn x4(_start: u32, k: u32, _width: u32) -> vec4f {
    let c = k / 4u;
    var own: array<f32, 4u * TAPS>;     // of four channels, one after the other
    for (var i = 0u; i < TAPS; i++) {
        let four = taps[c * TAPS + i];
        own[4u * i] = four.x;
        own[4u * i + 1u] = four.y;
        own[4u * i + 2u] = four.z;
        own[4u * i + 3u] = four.w;
    }
    var sum = vec4f();
    for (var i = 0u; i < TAPS; i++) {
        sum += row_of(i, c) * vec4f(own[i], own[TAPS + i], own[2u * TAPS + i], own[3u * TAPS + i]);
    }
    return x[C4 + c] * sum;
}

// The row that a tap looks at, the oldest first; the last is that of x.
fn row_of(i: u32, c: u32) -> vec4f {
    if i == PAST {
        return x[c] * x[2u * C4 + c];
    }
    return select(past[(segment.source * PAST + i) * C4 + c], vec4f(), segment.start == 0u);
}

// Replaces the state.
fn find_statistics(lane: u32) {
    if is_first_workgroup {
        for (var c = lane; c < C4; c += WG) {
            for (var i = 0u; i < PAST; i++) {
                past[(segment.written * PAST + i) * C4 + c] = row_of(i + 1u, c);
            }
        }
    }
}
