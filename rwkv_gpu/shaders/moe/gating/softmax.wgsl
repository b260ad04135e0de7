// A score is the softmax of the logits of all experts.
const OF_ALL = true;

fn weight_of(logit: f32, most: f32) -> f32 { return exp(logit - most); }
fn whole(of_all: f32, _of_chosen: f32) -> f32 { return of_all; }
