// All rows of x are multiples of one unit.
fn scale_at(_t: u32) -> f32 { return X_UNIT / W_SCALE; }
