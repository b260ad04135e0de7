// y[t, :] = layer_norm(W[ids[t], :]) * weight + bias      one workgroup per row t; all rows of W are at hand
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [ROWS, D] runs
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]

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
    norm_row(t, lane);
}

fn value_at(_t: u32, d: u32) -> f32 { return row[d]; }
