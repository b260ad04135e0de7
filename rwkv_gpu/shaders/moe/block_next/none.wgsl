// What becomes of the sums of a workgroup is floats and nothing else.
fn collect(_n: u32, _value: f32) {}

fn keep_block(_t: u32, _first: u32, _lane: u32) {}
