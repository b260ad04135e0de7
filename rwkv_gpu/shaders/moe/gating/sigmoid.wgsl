// A score is the sigmoid of the logit.
const OF_ALL = false;

fn weight_of(logit: f32, _most: f32) -> f32 { return 1.0 / (1.0 + exp(-logit)); }
fn whole(_of_all: f32, _of_chosen: f32) -> f32 { return 1.0; }
