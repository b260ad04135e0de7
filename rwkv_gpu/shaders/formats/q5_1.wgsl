// Q5_1: weight = d · n + m.      x: 16 bytes per run, byte j = low nibbles of n[j], n[j+16]; y: a word per run, bit k of
// byte b = high bit of n[4k+b]; z: d | m as f16 per run
// needs formats/fifths: high_fifths, low_fifths; formats/nibbles: high_nibbles, low_nibbles; formats/packed: in_order
// needs words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i), word_at(plane.z, i)); }

fn scale_of(raw: Raw, _i: u32) -> vec2f { return unpack2x16float(raw.z); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    return in_order(low_nibbles(raw.x) | low_fifths(raw.y), high_nibbles(raw.x) | high_fifths(raw.y));
}
