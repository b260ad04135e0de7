// y[t, g, :] = v / sqrt(mean(v²) + EPS) * weight[g, :] + shift, v = x[t, g, :] - centre      one workgroup per row t and group g
// needs centre: centre_of; lanes: reduce_add; shift: shift_at
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
    let centre = centre_of(first, lane);
    var squares = 0.0;
    for (var d = lane; d < OWN; d += WG) {
        let v = x[first + d] - centre;
        squares += v * v;
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(OWN) + EPS);
    for (var d = lane; d < OWN; d += WG) {
        y[first + d] = (x[first + d] - centre) * scale * weight[(column + d) % WEIGHTS] + shift_at(column + d);
    }
}
