// x / sqrt(mean(x²) + EPS) * gain, in the prologue of a product: the gain goes to x, the root to the sums at the end.
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [K / 4]

fn gained(values: vec4f, k: u32) -> vec4f { return values * gain[k / 4u]; }

// From the squares that a lane has seen.
fn rms_scale(squares: f32, width: u32, lane: u32) -> f32 {
    return inverseSqrt(reduce_add(squares, lane) / f32(width) + EPS);
}
