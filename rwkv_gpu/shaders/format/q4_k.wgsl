// Q4_K: weight = d · s · n - dmin · m.      x: 16 bytes a run, byte j = n[j] | n[j+16] << 4; y: 4 words a superblock of
// 8 runs: d | dmin as f16, then nibble r of run r: low bits of s, low bits of m, high bits of s | those of m << 2
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return scale_and_min(w[plane.y + i / 8u], i % 8u); }

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    return in_order(low_nibbles(v), high_nibbles(v));
}
