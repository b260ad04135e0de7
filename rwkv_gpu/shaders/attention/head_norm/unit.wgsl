// Heads are normed without weights.
const NORMED = true;
const WHOLE = false;

// Where the weights of a head begin; keys stand behind the H heads of queries.
fn norm_start(_head: u32) -> u32 { return 0u; }

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }
