// y[t, :] = x[t, :] · |as_long[t, :]| / |x[t, :]|      one workgroup per row t
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
