// From the logits of the chosen experts to their shares.
// needs gating: whole
// What the weight of a chosen expert is multiplied by. The sums are of weights: over all experts, and over the chosen.
fn share_scale(of_all: f32, of_chosen: f32) -> f32 {
    let scale = 1.0 / whole(of_all, of_chosen);
    return SHARE_SCALE * select(scale, scale / max(scale * of_chosen, LEAST_SUM), NORMALISE == 1u);
}
