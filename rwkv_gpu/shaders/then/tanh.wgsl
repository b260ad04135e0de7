// Some drivers' tanh overflows past 44; from 10 on it is 1 to the last bit anyway.
fn then(y: f32) -> f32 { return tanh(clamp(y, -10.0, 10.0)); }
