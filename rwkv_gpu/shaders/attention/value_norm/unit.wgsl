// Values are normed by head, without weights.
// needs attention/heads: squares_from
fn value_scale(start: u32) -> f32 { return inverseSqrt(squares_from(start) / f32(HEAD) + EPS); }
