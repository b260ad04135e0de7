// A decay exp(BOUND · sigmoid(a · A)), which is never below exp(BOUND)
fn faded(a: f32, rate: f32) -> f32 { return exp(BOUND / (1.0 + exp(-a * rate))); }
