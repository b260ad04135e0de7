// Q4_1: weight = d · n + m.      x: 16 bytes per run, byte j = n[j] | n[j+16] << 4; y: d | m as f16 per run
// needs formats/nibbles: high_nibbles, low_nibbles; formats/packed: in_order; words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i)); }

fn scale_of(raw: Raw, _i: u32) -> vec2f { return unpack2x16float(raw.y); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> { return in_order(low_nibbles(raw.x), high_nibbles(raw.x)); }
