// The token of a row, as the step gives it.
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]

fn token_of(t: u32) -> u32 { return ids[t]; }
