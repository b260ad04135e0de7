// IQ4_NL: weight = d · table[n].      x: 16 bytes per run, byte j = n[j] | n[j+16] << 4; y: d as f16 per run
// needs formats/packed: half_of, in_order; formats/table_iq4: table_iq4; words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i / 2u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return vec2f(half_of(raw.y, i), 0.0); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    return in_order(table_iq4(raw.x), table_iq4(raw.x >> vec4u(4u)));
}
