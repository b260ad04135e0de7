// IQ4_NL: weight = d · table[n].      x: 16 bytes a run, byte j = n[j] | n[j+16] << 4; y: d as f16 a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(half_at(plane.y, i), 0.0); }

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    return in_order(table_iq4(v), table_iq4(v >> vec4u(4u)));
}
