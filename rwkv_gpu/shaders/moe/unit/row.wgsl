// Each row of x has a power of two, which lies behind the rows.
fn scale_at(t: u32) -> f32 { return ldexp(1.0, i32(x[X_ROWS * PADDED4 + t].x) - i32(W_EXPONENT)); }
