// y[t, g, :] = x[t, g, :] / sqrt(mean(x[t, g, :]²) + EPS) * weight[g, :]      one workgroup per row t and group g
// needs lanes: reduce_add
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, G, D / G]
@group(0) @binding(2) var<storage, read> weight: array<f32>;    // [G, D / G], or [D / G]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, G, D / G]

const_assert D % G == 0u;
const OWN = D / G;

fn run(group: u32, lane: u32) {
    let t = group / G;
    if t >= step.rows {
        return;
    }
    let column = group % G * OWN;
    let first = t * D + column;
    var squares = 0.0;
    for (var d = lane; d < OWN; d += WG) {
        squares += x[first + d] * x[first + d];
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(OWN) + EPS);
    for (var d = lane; d < OWN; d += WG) {
        y[first + d] = x[first + d] * scale * weight[(column + d) % WEIGHTS];
    }
}
