// Heads are normed before they turn. `vectors` starts with the weights of q and k [2, N].
const NORMED = true;

fn weight_before(d: u32) -> f32 { return vectors[d]; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32) -> f32 { return inverseSqrt(squares / f32(HEAD) + EPS); }
