// y[t, :] = W[ids[t], :]      one workgroup per row t, one lane per run of W
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [V, D] runs
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

const RUNS = (D + RUN - 1u) / RUN;

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    for (var r = lane; r < RUNS; r += WG) {
        let i = ids[t] * RUNS + r;
        let scale = run_scale(i);
        var q = run_quants(i);
        for (var j = 0u; j < RUN; j++) {
            let k = r * RUN + j;
            if k < D {
                y[t * D + k] = fma(scale.x, q[j / 4u][j % 4u], scale.y);
            }
        }
    }
}
