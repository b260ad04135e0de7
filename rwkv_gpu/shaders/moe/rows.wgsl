// Rows of x for expert_gemv_int.

//# joined_runs
// A row of x is the result of a head of latent attention in runs of the context, which the workgroup joins.
// needs attention/partition: runs_of; attention/run_sums: all_parts, sum_runs; staging: stage
@group(0) @binding(2) var<storage, read> x: array<vec4f>;               // [T, E, RUNS, K / 4 + 1]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)

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

//# plain: A row of x is complete in memory.
// needs staging: stage
fn prefetch_row(_n: u32, _lane: u32) {}

fn stage_row(start: u32, lane: u32) -> f32 { return stage(start, K, lane); }

//# prefetched
// A row of x is loaded while experts are ranked, as it does not depend on the choice. Weights are loaded while x is quantised.
// needs moe/tiles: input_at; rows: x4; staging: pad, put_four
const OWN_FOURS = (K / 4u + WG - 1u) / WG;  // vec4s of a row per lane

var<private> own_fours: array<vec4f, OWN_FOURS>;

// Loads the row of choice n, in a branch: compilers move other loads down to their uses.
fn prefetch_row(n: u32, lane: u32) {
    if step.bucket > 0u {
        for (var i = 0u; i < OWN_FOURS; i++) {
            own_fours[i] = x4(input_at(n), 4u * min(i * WG + lane, K / 4u - 1u), K);
        }
    }
}

fn stage_row(_start: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var i = 0u; i < OWN_FOURS; i++) {
        squares += put_four(own_fours[i], i * WG + lane, K / 4u);
    }
    pad(K / 4u, lane);
    return squares;
}
