// Experts are chosen by their scores and a bias, which their shares do not have.
@group(0) @binding(12) var<storage, read> selection_bias: array<f32>;   // [E]

const BY_SCORE = true;

fn chosen_by(score: f32, _logit: f32, e: u32) -> f32 { return score + selection_bias[e]; }
