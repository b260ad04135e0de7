// Ops over several residual streams (AltUp, hyper-connections).

//# add: y[t, s · D + d] = x[t, s · D + d] + gates[t, s] · found[t, d]      one lane per element
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, S · D]
@group(0) @binding(2) var<storage, read> gates: array<f32>;     // [T, S]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, S · D]
@group(0) @binding(4) var<storage, read> found: array<f32>;     // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * STREAMS * D {
        return;
    }
    y[i] = fma(gates[i / D], found[i / (STREAMS * D) * D + i % D], x[i]);
}

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

//# gates
// y_p[t, s] = m_p · sigmoid(scales[p] · z[t, p · S + s] + bias[p · S + s]) + EPS      one lane for a stream of a row
// needs lib/step: numbers_apart
@group(0) @binding(1) var<storage, read> z: array<f32>;         // [T, KINDS · STREAMS]
@group(0) @binding(2) var<storage, read> scales: array<f32>;    // [KINDS]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [KINDS, T, STREAMS], a stack
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [KINDS · STREAMS]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * STREAMS {
        return;
    }
    let between = numbers_apart(STREAMS);
    for (var p = 0u; p < KINDS; p++) {
        let column = p * STREAMS + i % STREAMS;
        let sum = fma(scales[p], z[i / STREAMS * KINDS * STREAMS + column], bias[column]);
        y[p * between + i] = fma(select(MAGNITUDE, 1.0, p == 0u), 1.0 / (1.0 + exp(-sum)), EPS);
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
