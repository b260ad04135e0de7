// y[t, :] = (x[t, :] - mean) / sqrt(var + EPS) * weight + bias      one workgroup per row t
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> weight: array<f32>;    // [D]
@group(0) @binding(3) var<storage, read> bias: array<f32>;      // [D]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var sum = 0.0;
    for (var d = lane; d < D; d += WG) {
        sum += x[t * D + d];
    }
    let mean = reduce_add(sum, lane) / f32(D);
    var squares = 0.0;
    for (var d = lane; d < D; d += WG) {
        let centred = x[t * D + d] - mean;
        squares += centred * centred;
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS);
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] = (x[t * D + d] - mean) * scale * weight[d] + bias[d];
    }
}
