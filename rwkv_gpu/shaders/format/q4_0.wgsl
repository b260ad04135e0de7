// Q4_0: weight = d · (n - 8).      x: 16 bytes a run, byte j = n[j] | n[j+16] << 4; y: d as f16 a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(half_at(plane.y, i), 0.0); }

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    let low = centred(low_nibbles(v));
    let high = centred(high_nibbles(v));
    return in_order(low, high);
}

// n - 8 in each byte: no carry leaves a byte, as n <= 15
fn centred(n: vec4u) -> vec4u { return (n + vec4u(0x78787878u)) ^ vec4u(0x80808080u); }
