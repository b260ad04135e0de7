// The softmax is over the positions alone.
fn sink_of(_head: u32, _top: f32) -> f32 { return 0.0; }
