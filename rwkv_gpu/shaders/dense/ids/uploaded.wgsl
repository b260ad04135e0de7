// The token of a row, as the step gives it.
fn token_of(t: u32) -> u32 { return ids[t]; }
