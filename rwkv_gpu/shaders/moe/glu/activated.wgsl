// needs lib/activation: activation
fn glu(gate: f32, up: f32) -> f32 { return activation(THEN, gate) * up; }
