// Runs of 32 by 16 bytes, byte j = n[j] | n[j+16] << 4, and a fifth bit in a word, bit k of byte b = that of n[4k+b].
fn low_nibbles(v: vec4u) -> vec4u { return v & vec4u(0x0f0f0f0fu); }        // n[0] .. n[15]

fn high_nibbles(v: vec4u) -> vec4u { return (v >> vec4u(4u)) & vec4u(0x0f0f0f0fu); }    // n[16] .. n[31]

fn low_fifths(h: u32) -> vec4u { return vec4u(h << 4u, h << 3u, h << 2u, h << 1u) & vec4u(0x10101010u); }

fn high_fifths(h: u32) -> vec4u { return vec4u(h, h >> 1u, h >> 2u, h >> 3u) & vec4u(0x10101010u); }
