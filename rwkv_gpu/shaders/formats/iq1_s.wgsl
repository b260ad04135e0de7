// IQ1_S: weight = d · (2 s + 1) · (n - 1 ± 1/8), n from a codebook.
// x: 12 words per superblock of 8 runs. First a byte for each 8 weights: the low bits of their codebook entry. Then 16 bits
// per run: the 3 high bits of each of its entries, s, and the sign of 1/8. y: d as f16; z: the codebook
// needs formats/codebook: eight_codes, entry; formats/packed: half_of; words: word_at
const RUN = 32u;

struct Raw {
    x: u32,
    high: u32,
    y: u32,
}

fn run_raw(i: u32) -> Raw {
    let start = 12u * (i / 8u);
    return Raw(
        word_at(plane.x, start + i % 8u),
        word_at(plane.x, start + 8u + (i % 8u) / 2u),
        word_at(plane.y, i / 16u),
    );
}

fn high_of(raw: Raw, i: u32) -> u32 { return (raw.high >> (16u * (i % 2u))) & 0xffffu; }

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let high = high_of(raw, i);
    let d = half_of(raw.y, i / 8u) * f32(2u * ((high >> 12u) & 7u) + 1u);
    return vec2f(d, d * select(-0.875, -1.125, high >= 0x8000u));
}

fn packed_of(raw: Raw, i: u32) -> array<u32, 8> {
    let high = high_of(raw, i);
    var n: array<u32, 8>;
    for (var j = 0u; j < 4u; j++) {
        let number = ((raw.x >> (8u * j)) & 255u) | (((high >> (3u * j)) & 7u) << 8u);
        let codes = eight_codes(entry(plane.z, number));
        n[2u * j] = codes.x;
        n[2u * j + 1u] = codes.y;
    }
    return n;
}
