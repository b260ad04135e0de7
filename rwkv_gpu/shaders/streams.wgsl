// Ops over several residual streams (AltUp, hyper-connections).

//# add: y[t, s · D + d] = x[t, s · D + d] + gates[t, s] · found[t, d]      one lane per element
// needs mix: mixed
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, S · D]
@group(0) @binding(2) var<storage, read> gates: array<f32>;     // [T, S]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, S · D]
@group(0) @binding(4) var<storage, read> found: array<f32>;     // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * STREAMS * D {
        return;
    }
    y[i] = fma(gates[i / D], found[i / (STREAMS * D) * D + i % D], mixed(i));
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
@group(0) @binding(1) var<storage, read> z: array<f32>;         // [T, COLUMNS]
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
        let sum = fma(scales[p], z[i / STREAMS * COLUMNS + column], bias[column]);
        y[p * between + i] = fma(select(MAGNITUDE, 1.0, p == 0u), 1.0 / (1.0 + exp(-sum)), select(WRITE_EPS, EPS, p == 0u));
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

//# matrix
// y[t, a · S + b] = softmax over b of scales[2] · z + bias, then divided by the sums of columns and rows in turns      one lane per row
@group(0) @binding(1) var<storage, read> z: array<f32>;         // [T, COLUMNS], the last S · S
@group(0) @binding(2) var<storage, read> scales: array<f32>;    // [3]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, S · S]
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [COLUMNS]

const FIRST = 2u * STREAMS;

fn run(group: u32, lane: u32) {
    let t = group * WG + lane;
    if t >= step.rows {
        return;
    }
    var m: array<f32, STREAMS * STREAMS>;
    for (var a = 0u; a < STREAMS; a++) {
        var most = -3.4e38;
        for (var b = 0u; b < STREAMS; b++) {
            let n = a * STREAMS + b;
            m[n] = fma(scales[2], z[t * COLUMNS + FIRST + n], bias[FIRST + n]);
            most = max(most, m[n]);
        }
        var sum = 0.0;
        for (var b = 0u; b < STREAMS; b++) {
            m[a * STREAMS + b] = exp(m[a * STREAMS + b] - most);
            sum += m[a * STREAMS + b];
        }
        for (var b = 0u; b < STREAMS; b++) {
            m[a * STREAMS + b] = m[a * STREAMS + b] / sum + EPS;
        }
    }
    for (var i = 0u; i < 2u * ITERATIONS - 1u; i++) {
        let across = select(1u, STREAMS, i % 2u == 0u);     // the distance of numbers that are summed
        for (var a = 0u; a < STREAMS; a++) {
            let first = a * (STREAMS + 1u - across);
            var sum = EPS;
            for (var b = 0u; b < STREAMS; b++) {
                sum += m[first + b * across];
            }
            for (var b = 0u; b < STREAMS; b++) {
                m[first + b * across] /= sum;
            }
        }
    }
    for (var n = 0u; n < STREAMS * STREAMS; n++) {
        y[t * STREAMS * STREAMS + n] = m[n];
    }
}

//# mix/matrix: Streams are mixed first.
@group(0) @binding(5) var<storage, read> matrix: array<f32>;    // [T, STREAMS · STREAMS]

fn mixed(i: u32) -> f32 {
    let t = i / (STREAMS * D);
    let s = i / D % STREAMS;
    var sum = 0.0;
    for (var a = 0u; a < STREAMS; a++) {
        sum = fma(matrix[(t * STREAMS + a) * STREAMS + s], x[(t * STREAMS + a) * D + i % D], sum);
    }
    return sum;
}

//# mix/none: Streams are not mixed.
fn mixed(i: u32) -> f32 { return x[i]; }

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
