// Q4_1: weight = d · n + m.      x: 16 bytes a run, byte j = n[j] | n[j+16] << 4; y: d | m as f16 a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return unpack2x16float(word_at(plane.y, i)); }

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    return in_order(low_nibbles(v), high_nibbles(v));
}
