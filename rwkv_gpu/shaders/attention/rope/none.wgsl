// Nothing turns: DIMS is 0.
fn pair_of(d: u32) -> u32 { return d; }
fn partner_of(d: u32) -> u32 { return d; }
fn is_second(_d: u32) -> bool { return false; }
fn turn_of(_position: u32, _pair: u32) -> vec2f { return vec2f(1.0, 0.0); }
