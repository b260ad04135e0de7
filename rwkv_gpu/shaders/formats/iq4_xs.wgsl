// IQ4_XS: weight = d · (s - 32) · table[n].      x: 16 bytes per run, byte j = n[j] | n[j+16] << 4; y: 2 words per
// superblock of 8 runs: d as f16 | high 2 bits of s at 16 + 2r for run r, then the low 4 bits at 4r
// needs formats/packed: in_order; formats/table_iq4: table_iq4
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: vec4u,       // the words of two superblocks, of which this one needs half
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], w[plane.y + i / 16u]); }

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let header = select(raw.y.xy, raw.y.zw, (i & 8u) == 8u);
    let low = header.y >> (4u * (i % 8u));
    let high = header.x >> (16u + 2u * (i % 8u));
    let s = (low & 15u) | ((high & 3u) << 4u);
    return vec2f(unpack2x16float(header.x).x * (f32(s) - 32.0), 0.0);
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    return in_order(table_iq4(raw.x), table_iq4(raw.x >> vec4u(4u)));
}
