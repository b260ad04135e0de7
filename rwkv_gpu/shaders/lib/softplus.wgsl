// log(1 + exp(x)); x itself above 20, where float32 has no difference
fn softplus(x: f32) -> f32 { return select(log(1.0 + exp(x)), x, x > 20.0); }
