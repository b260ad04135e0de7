// Heads are normed after they turn, which does not change their length. `vectors` starts with the weights of q and k [2, N].
const NORMED = true;
const WHOLE = false;

// Where the weights of a head begin; keys stand behind the H heads of queries.
fn norm_start(head: u32) -> u32 { return select(0u, N, head >= H); }

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(d: u32) -> f32 { return vectors[d]; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }
