// A score is the softmax of the logits of the chosen experts.
const OF_ALL = false;

fn weight_of(logit: f32, most: f32) -> f32 { return exp(logit - most); }
fn whole(_of_all: f32, of_chosen: f32) -> f32 { return of_chosen; }
