// How many runs of the context a row has at most, which sees so many positions: all rows have as many.
fn most_runs(_length: u32) -> u32 { return RUNS; }
