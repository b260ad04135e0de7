// The row and the number of a run, by its number of all: EVEN of each of STEP_ROWS rows, and behind them the further ones of long
// rows. Beyond the rows where there is none.
// needs attention/runs/shared_out: is_unlike, most_runs
var<workgroup> further_runs: array<u32, (STEP_ROWS + 3u) / 4u * 4u>;    // of 16 bytes each four, as fragments lie beside them

fn run_at(index: u32, lane: u32) -> vec2u {
    var found = vec2u(index / EVEN, index % EVEN);
    if index >= STEP_ROWS * EVEN {
        found = vec2u(STEP_ROWS, 0u);
        if is_unlike() {
            for (var t = lane; t < STEP_ROWS; t += WG) {
                further_runs[t] = select(0u, most_runs(places[t].x + 1u) - EVEN, t < step.rows);
            }
            workgroupBarrier();
            var left = index - STEP_ROWS * EVEN;
            for (var t = 0u; t < STEP_ROWS; t++) {
                if left < further_runs[t] {
                    found = vec2u(t, EVEN + left);
                    break;
                }
                left -= further_runs[t];
            }
        }
    }
    return found;
}
