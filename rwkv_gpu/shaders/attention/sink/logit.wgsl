// One more score for each head, which has no value: what its exponential adds to the sum. `vectors` has it from SINKS on.
fn sink_of(head: u32, top: f32) -> f32 { return exp(min(vectors[SINKS + head % H] - top, 80.0)); }
