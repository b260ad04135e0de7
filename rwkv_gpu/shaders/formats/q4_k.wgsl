// Q4_K: weight = d · s · n - dmin · m.      x: 16 bytes per run, byte j = n[j] | n[j+16] << 4; y: 4 words per superblock of
// 8 runs: d | dmin as f16, then nibble r of run r: low bits of s, low bits of m, high bits of s | those of m << 2
// needs formats/nibbles: high_nibbles, low_nibbles; formats/packed: in_order; formats/scales_k: scale_and_min
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: vec4u,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], w[plane.y + i / 8u]); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return scale_and_min(raw.y, i % 8u); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> { return in_order(low_nibbles(raw.x), high_nibbles(raw.x)); }
