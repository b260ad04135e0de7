// y[t, h] = sum_r e^(top_r - top) x_r / sum_r e^(top_r - top) sum_r      over runs r of the context; COLUMNS vec4s of HEADS heads for a workgroup
// needs cut: runs_of; attention/run_sums: all_parts, sum_runs; answer: answer; gate: gated; sink: sink_of
@group(0) @binding(1) var<storage, read> x: array<vec4f>;           // [T, H, RUNS, N / 4 + 1]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;      // [T] of (position, its row among all pages)
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;     // [T, H, N / 4]

const N4 = N / 4u;
const SLICES = N4 / COLUMNS;                // workgroups that share a head
const LANES = HEADS * RUN_LANES * COLUMNS;      // lanes that have work
const RUNS_AT_ONCE = 4u;

const_assert N4 % COLUMNS == 0u;
const_assert LANES <= WG;

fn run(group: u32, lane: u32) {
    let head = group / SLICES * HEADS + lane / (COLUMNS * RUN_LANES);
    let part = lane / COLUMNS % RUN_LANES;
    let column = group % SLICES * COLUMNS + lane % COLUMNS;
    let works = lane < LANES && head / H < step.rows;
    if works {
        sum_runs(lane, head, column, part, runs_of(places[head / H].x));
    }
    workgroupBarrier();
    if works && part == 0u {
        let all = all_parts(lane);
        answer(head * N4 + column, gated(all.total / (all.sum + sink_of(head, all.top)), head * N4 + column));
    }
}
