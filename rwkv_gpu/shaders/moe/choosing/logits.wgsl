// Experts are chosen by their logits, which are in the order of their scores.
const BY_SCORE = false;

fn chosen_by(_score: f32, logit: f32, _e: u32) -> f32 { return logit; }
