// y[t, :] = layer_norm(W[ids[t], :]) * weight + bias      one workgroup per row t; all rows of W are in one binding
// needs dense/norm/row: norm_row; format: floats, fours_of, run_raw, scale_of; ids: token_of
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [ROWS, D] runs

const FOURS = RUN / 4u;
const RUNS = (D + RUN - 1u) / RUN;
const plane = vec4u(PLANE0, PLANE1, PLANE2, PLANE3);

const_assert FIRST == 0u;

var<private> first_run: u32;    // the first run of the row of W

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    first_run = min(token_of(t), ROWS - 1u) * RUNS;
    norm_row(t, lane);
}

fn four_at(_t: u32, d: u32) -> vec4f {
    let i = first_run + d / FOURS;
    let raw = run_raw(i);
    let scale = scale_of(raw, i);
    var fours = fours_of(raw, i);
    var four = fours[0];
    for (var j = 1u; j < FOURS; j++) {  // an index that is not constant would move them to memory
        four = select(four, fours[j], d % FOURS == j);
    }
    return fma(vec4f(scale.x), floats(four), vec4f(scale.y));
}
