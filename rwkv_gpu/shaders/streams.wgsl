// Ops over several residual streams (AltUp).

//# correct
// y_s[t] = x_s[t] + (1 + coefs[t, s]) · (found[t] - x_0[t]) + residual[t], y_0 without it      one lane for a column of a row, of all streams
// needs lib/step: numbers_apart; residual: residual_at
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [STREAMS, T, D], a stack
@group(0) @binding(2) var<storage, read> coefs: array<f32>;     // [T, COEFS]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [STREAMS, T, D], a stack
@group(0) @binding(4) var<storage, read> found: array<f32>;     // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * D {
        return;
    }
    let between = numbers_apart(D);
    let more = residual_at(i);
    let news = found[i] - x[i];
    for (var s = 0u; s < STREAMS; s++) {
        let corrected = fma(1.0 + coefs[i / D * COEFS + s], news, x[s * between + i]);
        y[s * between + i] = select(corrected, corrected + more, s > 0u);
    }
}

//# match_length: y[t, :] = x[t, :] · |as_long[t, :]| / |x[t, :]|      one workgroup per row t
// needs lanes: reduce_add
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> as_long: array<f32>;   // [T, D]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var own = 0.0;
    var wanted = 0.0;
    for (var d = lane; d < D; d += WG) {
        own += x[t * D + d] * x[t * D + d];
        wanted += as_long[t * D + d] * as_long[t * D + d];
    }
    own = reduce_add(own, lane);
    let scale = sqrt(reduce_add(wanted, lane) / own);
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] = scale * x[t * D + d];
    }
}

//# predict
// y_b[t] = x_b[t] + sum over a of coefs[t, STREAMS · b + a] · x_a[t]      one lane for a column of a row, of all streams
// needs lib/step: numbers_apart
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [STREAMS, T, D], a stack
@group(0) @binding(2) var<storage, read> coefs: array<f32>;     // [T, STREAMS · STREAMS]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [STREAMS, T, D], a stack

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * D {
        return;
    }
    let between = numbers_apart(D);
    var streams: array<f32, STREAMS>;
    for (var a = 0u; a < STREAMS; a++) {
        streams[a] = x[a * between + i];
    }
    for (var b = 0u; b < STREAMS; b++) {
        let first = (i / D * STREAMS + b) * STREAMS;
        var sum = streams[b];
        for (var a = 0u; a < STREAMS; a++) {
            sum = fma(coefs[first + a], streams[a], sum);
        }
        y[b * between + i] = sum;
    }
}
