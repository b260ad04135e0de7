// y is floats and nothing else.
fn give(_value: f32, _n: u32) {}
fn given(_at: Place, _lane: u32) {}
