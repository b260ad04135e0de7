// IQ2_XXS: weight = d · (s + 1/2) / 4 · n, n from a codebook.
// x: two words per run. First a byte for each 8 weights: their codebook entry. Then 7 bits for each 8 weights: their signs.
// Then s. y: d as f16 per superblock of 8 runs; z: the codebook
// needs formats/codebook: even_signs; formats/codebook_iq2: eight_weights, sixteenths; formats/packed: byte_of, half_of
// needs words: word_at
const RUN = 32u;

struct Raw {
    x: vec2u,
    y: u32,
}

fn run_raw(i: u32) -> Raw {
    return Raw(vec2u(word_at(plane.x, 2u * i), word_at(plane.x, 2u * i + 1u)), word_at(plane.y, i / 16u));
}

fn scale_of(raw: Raw, i: u32) -> vec2f { return sixteenths(half_of(raw.y, i / 8u), raw.x.y >> 28u); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    var n: array<u32, 8>;
    for (var j = 0u; j < 4u; j++) {
        let weights = eight_weights(plane.z, byte_of(raw.x.x, j), even_signs(raw.x.y >> (7u * j)));
        n[2u * j] = weights.x;
        n[2u * j + 1u] = weights.y;
    }
    return n;
}
