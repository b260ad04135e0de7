// y[t] = the first d where x[t, d] is largest      one workgroup per row t
// needs lanes: reduce_max, reduce_min
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<u32>;   // [T]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var most = -3.4e38;
    var place = D - 1u;
    for (var d = lane; d < D; d += WG) {
        if x[t * D + d] > most {
            most = x[t * D + d];
            place = d;
        }
    }
    let top = reduce_max(most, lane);
    place = reduce_min(select(D - 1u, place, most == top), lane);
    if lane == 0u {
        y[t] = place;
    }
}
