// 16 bytes are eight weights.
const FOURS = 2u;

fn four_of(raw: vec4u, f: u32) -> Four { return select(raw.xy, raw.zw, f == 1u); }
