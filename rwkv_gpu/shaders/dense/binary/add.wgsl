fn binary(x: f32, z: f32) -> f32 { return x + z; }
