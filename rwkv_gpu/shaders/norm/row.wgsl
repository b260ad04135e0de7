// y[t, :] = (v - mean) / sqrt(var + EPS) * weight + bias, v as `value_at` gives it      a row by one workgroup
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]
@group(0) @binding(5) var<storage, read> weight: array<f32>;    // [D]
@group(0) @binding(6) var<storage, read> bias: array<f32>;      // [D]

fn norm_row(t: u32, lane: u32) {
    var sum = 0.0;
    for (var d = lane; d < D; d += WG) {
        sum += value_at(t, d);
    }
    let mean = reduce_add(sum, lane) / f32(D);
    var squares = 0.0;
    for (var d = lane; d < D; d += WG) {
        let centred = value_at(t, d) - mean;
        squares += centred * centred;
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS);
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] = (value_at(t, d) - mean) * scale * weight[d] + bias[d];
    }
}
