// y[t, :] = max(x[t, :] - mean - DEVIATIONS · sqrt(sum (x - mean)² / (D - 1)), 0)      one workgroup per row t
// needs lanes: reduce_add
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, D]

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
        squares += (x[t * D + d] - mean) * (x[t * D + d] - mean);
    }
    let least = mean + DEVIATIONS * sqrt(reduce_add(squares, lane) / f32(D - 1u));
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] = max(x[t * D + d] - least, 0.0);
    }
}
