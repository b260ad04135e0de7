// How many runs of the context a row has at most, which sees so many positions: EVEN. Where rows are so unlike that others would
// wait for a long one, that one has more, up to RUNS: its share, by positions, of EXTRA runs.
const_assert EVEN > 0u && EVEN < RUNS && EXTRA > 0u;

fn most_runs(length: u32) -> u32 {
    let size = shared_size();
    return select(EVEN, clamp((length + size - 1u) / size, EVEN, RUNS), is_unlike());
}

// Positions that a run of a long row has.
fn shared_size() -> u32 { return max(GRAIN, (step.positions + EXTRA - 1u) / EXTRA); }

// Whether a row has more than EVEN runs.
fn is_unlike() -> bool { return step.longest > EVEN * shared_size(); }
