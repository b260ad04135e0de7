// The number of runs of a row's context, and the run of a workgroup.

//# even: The number of runs of the context of a row, which is the same for all rows.
fn most_runs(_length: u32) -> u32 { return RUNS; }

//# even_runs: The row of a run and its number within the row, given its number among all runs. Each row has RUNS.
fn run_at(index: u32, _lane: u32) -> vec2u { return vec2u(index / RUNS, index % RUNS); }

//# further_runs
// The row of a run and its number within the row, given its number among all runs. These are EVEN for each of STEP_ROWS
// rows, then further runs of long rows. The row is out of range if there is no such run.
// needs attention/runs/shared_out: is_unlike, most_runs
var<workgroup> further_runs: array<u32, (STEP_ROWS + 3u) / 4u * 4u>;    // padded to 16 bytes, as fragments follow it

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

//# shared_out
// The number of runs of the context of a row that reads `length` positions: EVEN, unless rows have very different
// lengths. In that case a long row, for which others would wait, has more, up to RUNS. Its share of EXTRA runs depends
// on its positions.
const_assert EVEN > 0u && EVEN < RUNS && EXTRA > 0u;

fn most_runs(length: u32) -> u32 {
    let size = shared_size();
    return select(EVEN, clamp((length + size - 1u) / size, EVEN, RUNS), is_unlike());
}

// The number of positions in a run of a long row.
fn shared_size() -> u32 { return max(GRAIN, (step.positions + EXTRA - 1u) / EXTRA); }

// True if a row has more than EVEN runs.
fn is_unlike() -> bool { return step.longest > EVEN * shared_size(); }
