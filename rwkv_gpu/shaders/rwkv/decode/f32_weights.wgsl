// 16 bytes are four weights.
const FOURS = 1u;

fn four_of(raw: vec4u, _f: u32) -> Four { return raw; }
