// q and k are normed before they turn, each over all its heads. `vectors` starts with their weights [H, N] and [KV, N].
const NORMED = false;
const WHOLE = true;

// Where the weights of a head begin; keys stand behind the H heads of queries.
fn norm_start(head: u32) -> u32 { return head * N; }

fn weight_before(d: u32) -> f32 { return vectors[d]; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }
