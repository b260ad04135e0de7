// x / sqrt(mean(x²) + EPS) * gain, in the prologue of a product: the gain goes to x, the root to the sums at the end.
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [K / 4]

const NORMED = true;

fn gained(values: vec4f, k: u32) -> vec4f { return values * gain[k / 4u]; }
fn root(squares: f32, width: u32) -> f32 { return inverseSqrt(squares / f32(width) + EPS); }
