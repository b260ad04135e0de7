// Scores lose for each position between a query and a key what is the slope of the head (ALiBi): the first SLOPES heads have
// powers of 2^-SLOPE_STEP, and the others what lies between.
// needs kernel: Scores
fn logits_of(scores: Scores, heads: Scores, distances: Scores) -> Scores {
    let steps = select(heads - SLOPES + 0.5, heads + 1.0, heads < Scores(SLOPES));
    return scores - SLOPE_UNIT * exp2(-SLOPE_STEP * steps) * distances;
}
