// y[t, c] = sum over i of w[c, i] · x[t - HALF + i, c] + bias[c]      one lane for each row and channel
//
// Rows before and after those of a segment count as zeros.
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, C]
@group(0) @binding(2) var<storage, read> weights: array<f32>;           // w [C, TAPS], then the bias [C]
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(4) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(5) var<storage, read_write> y: array<f32>;           // [T, C]

const_assert TAPS % 2u == 1u;
const HALF = TAPS / 2u;

fn run(group: u32, lane: u32) {
    let t = group / ACROSS;
    let c = group % ACROSS * WG + lane;
    if t >= step.rows || c >= C {
        return;
    }
    var owner = t;                  // with one row per sequence, row t belongs to segment t
    if step.segments != step.rows {
        owner = row_segment[t];
    }
    let first = segments[owner].first + HALF;
    let end = first + segments[owner].count;
    var sum = weights[C * TAPS + c];
    for (var row = max(t, first); row < min(t + TAPS, end); row++) {
        sum += weights[c * TAPS + row - t] * x[(row - HALF) * C + c];
    }
    y[t * C + c] = sum;
}
