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
