// y[t, :] = SCALE · W[ids[t], :]      one workgroup per row t, one lane per run of W; a shard holds rows FIRST .. FIRST + ROWS
// needs formats/runs: run_quants, run_scale
// needs ids: token_of
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [ROWS, D] runs
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

const RUNS = (D + RUN - 1u) / RUN;
const plane = vec4u(PLANE0, PLANE1, PLANE2, PLANE3);

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let row = token_of(t) - FIRST;     // of another shard: wraps to a large number
    if row >= ROWS {
        return;
    }
    for (var r = lane; r < RUNS; r += WG) {
        let i = row * RUNS + r;
        let scale = run_scale(i);
        var q = run_quants(i);
        for (var j = 0u; j < RUN; j++) {
            let k = r * RUN + j;
            if k < D {
                y[t * D + k] = SCALE * fma(scale.x, q[j / 4u][j % 4u], scale.y);
            }
        }
    }
}
