// y[t, m] = then(sum_k W[m, k] · x[t, k] + bias[m]) + residual[t, m]      one workgroup per (t, m); rows FIRST .. FIRST + ROWS of W
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [ROWS, K] runs
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, M]

const RUNS = (K + RUN - 1u) / RUN;
const plane = vec4u(PLANE0, PLANE1, PLANE2, PLANE3);

fn run(group: u32, lane: u32) {
    let t = group / ROWS;
    let row = group % ROWS;
    if t >= step.rows {
        return;
    }
    var acc = 0.0;
    for (var r = lane; r < RUNS; r += WG) {
        let i = row * RUNS + r;
        let scale = run_scale(i);
        var q = run_quants(i);
        var dots = 0.0;
        var sums = 0.0;
        for (var j = 0u; j < RUN / 4u; j++) {
            let values = x4(t, r * RUN + 4u * j);
            dots += dot(q[j], values);
            sums += dot(vec4f(1.0), values);
        }
        acc += scale.x * dots + scale.y * sums;
    }
    acc = reduce_add(acc, lane);
    if lane == 0u {
        let m = FIRST + row;
        y[t * M + m] = with_residual(then(biased(acc, m)), t, m);
    }
}
