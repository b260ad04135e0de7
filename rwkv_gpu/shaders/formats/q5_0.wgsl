// Q5_0: weight = d · (n - 16).      x: 16 bytes per run, byte j = low nibbles of n[j], n[j+16]; y: a word per run, bit k of
// byte b = high bit of n[4k+b]; z: d as f16 per run
// needs formats/fifths: high_fifths, low_fifths; formats/nibbles: high_nibbles, low_nibbles
// needs formats/packed: half_of, in_order; formats/unsigned: centred; words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i), word_at(plane.z, i / 2u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return centred(half_of(raw.z, i), 16.0); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    return in_order(low_nibbles(raw.x) | low_fifths(raw.y), high_nibbles(raw.x) | high_fifths(raw.y));
}
