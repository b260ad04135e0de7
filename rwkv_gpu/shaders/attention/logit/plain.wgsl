// Scores are as they are.
fn logits_of(scores: Scores, _heads: Scores, _distances: Scores) -> Scores { return scores; }
