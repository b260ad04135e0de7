// A row of x is the answer of a head over latents, which attention left in runs of the context: the workgroup joins them.
// needs attention/partition: runs_of
// needs attention/run_sums: all_parts, sum_runs
// needs staging: stage
@group(0) @binding(2) var<storage, read> x: array<vec4f>;               // [T, E, RUNS, K / 4 + 1]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages

const N4 = K / 4u;
const COLUMNS = N4;
const RUN_LANES = WG / N4;
const RUNS_AT_ONCE = 8u;

const_assert RUN_LANES > 0u;

var<workgroup> joined: array<vec4f, N4>;

fn prefetch_row(_n: u32, _lane: u32) {}

fn stage_row(head: u32, lane: u32) -> f32 {
    if lane < RUN_LANES * COLUMNS {
        sum_runs(lane, head, lane % COLUMNS, lane / COLUMNS, runs_of(places[head / E].x));
    }
    workgroupBarrier();
    if lane < COLUMNS {
        let all = all_parts(lane);
        joined[lane] = all.total / all.sum;
    }
    workgroupBarrier();
    return stage(head, K, lane);
}

fn x4(_start: u32, k: u32, _width: u32) -> vec4f { return joined[k / 4u]; }
