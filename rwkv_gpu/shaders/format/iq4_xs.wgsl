// IQ4_XS: weight = d · (s - 32) · table[n].      x: 16 bytes a run, byte j = n[j] | n[j+16] << 4; y: 2 words a super-
// block of 8 runs: d as f16 | high 2 bits of s at 16 + 2r for run r, then the low 4 bits at 4r
const RUN = 32u;

fn run_scale(i: u32) -> vec2f {
    let two = w[plane.y + i / 16u];     // superblocks: half of it is of this one
    let header = select(two.xy, two.zw, (i & 8u) == 8u);
    let low = header.y >> (4u * (i % 8u));
    let high = header.x >> (16u + 2u * (i % 8u));
    let s = (low & 15u) | ((high & 3u) << 4u);
    return vec2f(unpack2x16float(header.x).x * (f32(s) - 32.0), 0.0);
}

fn run_packed(i: u32) -> array<u32, 8> {
    let v = w[plane.x + i];
    return in_order(table_iq4(v), table_iq4(v >> vec4u(4u)));
}
