// y[t, :] = AFTER · (SCALE · x[t, :] / sqrt(mean(x[t, :]²) + EPS) · weight + residual[t, :])      one workgroup per row t
// needs gain: gain_at
// needs lanes: reduce_add
// needs next: look_at, round_row
// needs residual: residual_at
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var squares = 0.0;
    for (var d = lane; d < D; d += WG) {
        squares += x[t * D + d] * x[t * D + d];
    }
    let scale = SCALE * inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS);
    for (var d = lane; d < D; d += WG) {
        let value = AFTER * (x[t * D + d] * scale * gain_at(d) + residual_at(t * D + d));
        y[t * D + d] = value;
        look_at(value, d);
    }
    round_row(t, lane);
}
