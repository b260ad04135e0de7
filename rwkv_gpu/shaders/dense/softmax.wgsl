// y[t, :] = exp(x[t, :] - max) / sum(exp(x[t, :] - max))      one workgroup per row t
// needs lanes: reduce_add, reduce_max
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var most = -3.4e38;
    for (var d = lane; d < D; d += WG) {
        most = max(most, x[t * D + d]);
    }
    most = reduce_max(most, lane);
    var sum = 0.0;
    for (var d = lane; d < D; d += WG) {
        let e = exp(x[t * D + d] - most);
        y[t * D + d] = e;
        sum += e;
    }
    let scale = 1.0 / reduce_add(sum, lane);
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] *= scale;
    }
}
