// Q5_K: weight = d · s · n - dmin · m.      x: 16 bytes per run, byte j = low nibbles of n[j], n[j+16]; y: a word per run,
// bit k of byte b = high bit of n[4k+b]; z: 4 words per superblock of 8 runs, as plane y of Q4_K
// needs formats/fifths: high_fifths, low_fifths; formats/nibbles: high_nibbles, low_nibbles; formats/packed: in_order
// needs formats/scales_k: scale_and_min; words: word_at
const RUN = 32u;

struct Raw {
    x: vec4u,
    y: u32,
    z: vec4u,
}

fn run_raw(i: u32) -> Raw { return Raw(w[plane.x + i], word_at(plane.y, i), w[plane.z + i / 8u]); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return scale_and_min(raw.z, i % 8u); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    return in_order(low_nibbles(raw.x) | low_fifths(raw.y), high_nibbles(raw.x) | high_fifths(raw.y));
}
