// Q5_1: weight = d · n + m.      x: 16 bytes a run, byte j = low nibbles of n[j], n[j+16]; y: a word a run, bit k of
// byte b = high bit of n[4k+b]; z: d | m as f16 a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return unpack2x16float(word_at(plane.z, i)); }

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    let h = word_at(plane.y, i);
    return in_order(low_nibbles(v) | low_fifths(h), high_nibbles(v) | high_fifths(h));
}
