// Experts are chosen by their scores: groups add them.
const BY_SCORE = true;

fn chosen_by(score: f32, _logit: f32, _e: u32) -> f32 { return score; }
