// A decay exp(softplus(a) · A)
// needs lib/softplus: softplus
fn faded(a: f32, rate: f32) -> f32 { return exp(softplus(a) * rate); }
