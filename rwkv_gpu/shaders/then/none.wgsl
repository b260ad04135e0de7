fn then(y: f32) -> f32 { return y; }
