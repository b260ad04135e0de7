// y[t, m] = sum_j shares[t, j] · (W_e[m, :] · x[t, j, :]) + residual[t, m]      a workgroup for R rows m of one t
// Its lanes stride over the runs of all USED products, as over one long row; e = experts[t, j].
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T, M]
@group(0) @binding(4) var<storage, read> experts: array<u32>;           // [T, USED]
@group(0) @binding(7) var<storage, read> shares: array<f32>;            // [T, USED]

const LANES = 1u;
const MATRICES = 1u;
const INPUT_USES = 1u;

fn run(group: u32, lane: u32) {
    let t = group / BLOCKS;
    if t >= step.rows {
        return;
    }
    let m0 = group % BLOCKS * R;
    var acc: array<f32, R>;
    for (var j = 0u; j < R; j++) {
        acc[j] = 0.0;
    }
    for (var c = lane; c < USED * RUNS; c += WG) {
        let n = t * USED + c / RUNS;
        let r = c % RUNS;
        let expert = min(experts[n], shard.experts - 1u);
        var q: array<array<vec4f, RUN / 4u>, R>;
        var dots: array<f32, R>;
        for (var j = 0u; j < R; j++) {
            q[j] = run_quants(row_runs(expert, m0, j) + r);
            dots[j] = 0.0;
        }
        var sums = 0.0;
        for (var k = 0u; k < RUN / 4u; k++) {
            let values = x4(n * K, r * RUN + 4u * k, K);
            sums += dot(values, vec4f(1.0));
            for (var j = 0u; j < R; j++) {
                dots[j] += dot(q[j][k], values);
            }
        }
        for (var j = 0u; j < R; j++) {
            let scale = run_scale(row_runs(expert, m0, j) + r);
            acc[j] += shares[n] * (scale.x * dots[j] + scale.y * sums);
        }
    }
    for (var j = 0u; j < R; j++) {
        acc[j] = reduce_add(acc[j], lane);
    }
    for (var j = lane; j < R; j += WG) {
        if m0 + j < M {
            y[t * M + m0 + j] = with_residual(acc[j], t * M + m0 + j);
        }
    }
}
