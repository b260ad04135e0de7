// Heads are normed without weights.
const NORMED = true;

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32) -> f32 { return inverseSqrt(squares / f32(HEAD) + EPS); }
