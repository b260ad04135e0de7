// Q4_0: weight = d · (n - 8).      x: 16 bytes per run, byte j = n[j] | n[j+16] << 4; y: d as f16 per run
// needs formats/nibbles: high_nibbles, low_nibbles; formats/packed: half_of, in_order; formats/unsigned: centred
// needs words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i / 2u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return centred(half_of(raw.y, i), 8.0); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> { return in_order(low_nibbles(raw.x), high_nibbles(raw.x)); }
