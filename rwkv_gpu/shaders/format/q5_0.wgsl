// Q5_0: weight = d · (n - 16).      x: 16 bytes a run, byte j = low nibbles of n[j], n[j+16]; y: a word a run, bit k of
// byte b = high bit of n[4k+b]; z: d as f16 a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(half_at(plane.z, i), 0.0); }

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    let h = word_at(plane.y, i);
    let low = centred(low_nibbles(v) | low_fifths(h));
    let high = centred(high_nibbles(v) | high_fifths(h));
    return in_order(low, high);
}

// n - 16 in each byte: no carry leaves a byte, as n <= 31
fn centred(n: vec4u) -> vec4u { return (n + vec4u(0x70707070u)) ^ vec4u(0x80808080u); }
