fn bias_at(_i: u32, _t: u32) -> f32 { return 0.0; }
fn bias_rest(_i: u32, _t: u32) -> f32 { return 0.0; }
