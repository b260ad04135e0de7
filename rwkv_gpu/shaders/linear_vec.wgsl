// y[t, m] = then(sum_k W[m, k] · x[t, k] + bias[m]) + residual[t, m]      one workgroup per (t, m), lanes stride over runs
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [M, K] runs
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, M]

const RUNS = (K + RUN - 1u) / RUN;

fn run(group: u32, lane: u32) {
    let t = group / M;
    let m = group % M;
    if t >= step.rows {
        return;
    }
    var acc = 0.0;
    for (var r = lane; r < RUNS; r += WG) {
        let i = m * RUNS + r;
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
        y[t * M + m] = with_residual(then(biased(acc, m)), t, m);
    }
}
