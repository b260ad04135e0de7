// IQ2_XS: weight = d · (s + 1/2) / 4 · n, n from a codebook.
// x: 16 bits for each 8 weights: 9 bits are their codebook entry, 7 bits their signs. y: 4 bits per run: s.
// z: d as f16 per superblock of 16 runs; w: the codebook
// needs formats/codebook: even_signs; formats/codebook_iq2: eight_weights, sixteenths; formats/packed: half_of
// needs words: word_at
const RUN = 16u;

struct Raw {
    x: u32,
    y: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw {
    return Raw(word_at(plane.x, i), word_at(plane.y, i / 8u), word_at(plane.z, i / 32u));
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    return sixteenths(half_of(raw.z, i / 16u), (raw.y >> (4u * (i % 8u))) & 15u);
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 4> {
    let first = eight_weights(plane.w, raw.x & 511u, even_signs(raw.x >> 9u));
    let second = eight_weights(plane.w, (raw.x >> 16u) & 511u, even_signs(raw.x >> 25u));
    return array<u32, 4>(first.x, first.y, second.x, second.y);
}
