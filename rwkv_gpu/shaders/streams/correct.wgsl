// y_s[t] = x_s[t] + (1 + coefs[t, s]) · (found[t] - x_0[t]) + residual[t], y_0 without it      one lane for a column of a row, of all streams
// needs lib/step: numbers_apart
// needs residual: residual_at
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
