// The fifth bits of a run of 32 in a word, bit k of byte b = that of n[4k+b].
fn low_fifths(h: u32) -> vec4u { return vec4u(h << 4u, h << 3u, h << 2u, h << 1u) & vec4u(0x10101010u); }

fn high_fifths(h: u32) -> vec4u { return vec4u(h, h >> 1u, h >> 2u, h >> 3u) & vec4u(0x10101010u); }
