// needs glu: glu
fn binary(x: f32, z: f32) -> f32 { return glu(x, z); }
