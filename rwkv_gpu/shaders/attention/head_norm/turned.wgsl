// Heads are normed after they turn, which does not change their length. `vectors` starts with the weights of q and k [2, N].
const NORMED = true;

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(d: u32) -> f32 { return vectors[d]; }

fn root_of(squares: f32) -> f32 { return inverseSqrt(squares / f32(HEAD) + EPS); }
