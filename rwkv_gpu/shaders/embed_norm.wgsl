// y[t, :] = layer_norm(W[ids[t], :]) * weight + bias      one workgroup per row t; all rows of W are at hand
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [ROWS, D] runs
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]
@group(0) @binding(5) var<storage, read> weight: array<f32>;    // [D]
@group(0) @binding(6) var<storage, read> bias: array<f32>;      // [D]

const RUNS = (D + RUN - 1u) / RUN;
const plane = vec4u(PLANE0, PLANE1, PLANE2, PLANE3);

const_assert FIRST == 0u;

var<workgroup> row: array<f32, RUNS * RUN>;

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let token = min(token_of(t), ROWS - 1u);
    for (var r = lane; r < RUNS; r += WG) {
        let i = token * RUNS + r;
        let scale = run_scale(i);
        var q = run_quants(i);
        for (var j = 0u; j < RUN; j++) {
            row[r * RUN + j] = fma(scale.x, q[j / 4u][j % 4u], scale.y);
        }
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var d = lane; d < D; d += WG) {
        sum += row[d];
    }
    let mean = reduce_add(sum, lane) / f32(D);
    var squares = 0.0;
    for (var d = lane; d < D; d += WG) {
        let centred = row[d] - mean;
        squares += centred * centred;
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS);
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] = (row[d] - mean) * scale * weight[d] + bias[d];
    }
}
