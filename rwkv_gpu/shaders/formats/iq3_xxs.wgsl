// IQ3_XXS: weight = d · (s + 1/2) / 2 · n, n from a codebook.
// x: a byte for each 4 weights: their codebook entry. y: a word per run: 7 bits of signs for each 8 weights, then s.
// z: d as f16 per superblock of 8 runs; w: the codebook
// needs formats/codebook: entry, even_signs, four_codes, with_signs; formats/packed: byte_of, half_of; words: word_at
const RUN = 32u;

struct Raw {
    x: vec2u,
    y: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw {
    return Raw(
        vec2u(word_at(plane.x, 2u * i), word_at(plane.x, 2u * i + 1u)),
        word_at(plane.y, i),
        word_at(plane.z, i / 16u),
    );
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    return vec2f(half_of(raw.z, i / 8u) * (0.5 + f32(raw.y >> 28u)) * 0.5, 0.0);
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    var n: array<u32, 8>;
    for (var j = 0u; j < 8u; j++) {
        let signs = even_signs(raw.y >> (7u * (j / 2u))) >> (4u * (j % 2u));
        n[j] = with_signs(sizes_of(four_codes(entry(plane.w, byte_of(raw.x[j / 4u], j)))), signs);
    }
    return n;
}

// codes 0 to 7 mean 4, 12, 20, 28, 36, 44, 52, 62
fn sizes_of(codes: u32) -> u32 {
    let seven = codes & (codes >> 1u) & (codes >> 2u) & 0x01010101u;
    return 0x04040404u + 8u * codes + 2u * seven;
}
