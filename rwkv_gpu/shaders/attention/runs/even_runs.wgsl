// The row and the number of a run, by its number of all: each row has RUNS.
fn run_at(index: u32, _lane: u32) -> vec2u { return vec2u(index / RUNS, index % RUNS); }
