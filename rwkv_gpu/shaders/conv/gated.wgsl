// A row of x holds f, g and h: f · h is convolved, and the result multiplied by g.
fn x_at(t: u32, c: u32) -> f32 { return x[t * STRIDE + FIRST + c] * x[t * STRIDE + FIRST + 2u * C + c]; }
fn gated(t: u32, c: u32, v: f32) -> f32 { return v * x[t * STRIDE + FIRST + C + c]; }
