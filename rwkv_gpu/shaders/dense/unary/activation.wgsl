// An activation of the vocabulary, by its number THEN.
// needs lib/activation: activation
fn unary(x: f32) -> f32 { return activation(THEN, x); }
