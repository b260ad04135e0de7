// Each row of x has a power of two, which lies behind the rows.
fn scale_at(t: u32) -> f32 { return ldexp(1.0, i32(unpack2x16float(x[X_ROWS * PADDED4 + t].x).x) - i32(W_EXPONENT)); }
