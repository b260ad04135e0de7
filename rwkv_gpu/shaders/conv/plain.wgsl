// x as it stands.
fn x_at(t: u32, c: u32) -> f32 { return x[t * STRIDE + FIRST + c]; }
fn gated(_t: u32, _c: u32, v: f32) -> f32 { return v; }
