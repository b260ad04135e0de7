// IQ3_S: weight = d · (2 s + 1) · n, n from a codebook.
// x: a byte for each 4 weights: the low bits of their codebook entry. y: 11 words per superblock of 8 runs. First a byte per
// run: the high bit of each of its entries. Then 4 bytes per run: the signs. Then 4 bits per run: s.
// z: d as f16; w: the codebook
// needs formats/codebook: entry, four_codes, with_signs; formats/packed: byte_of, half_of; words: word_at
const RUN = 32u;

struct Raw {
    x: vec2u,
    high: u32,      // the high bits of four runs
    signs: u32,
    scales: u32,    // the scales of all eight runs
    z: u32,
}

fn run_raw(i: u32) -> Raw {
    let r = i % 8u;
    let y = 11u * (i / 8u);
    return Raw(
        vec2u(word_at(plane.x, 2u * i), word_at(plane.x, 2u * i + 1u)),
        word_at(plane.y, y + r / 4u),
        word_at(plane.y, y + 2u + r),
        word_at(plane.y, y + 10u),
        word_at(plane.z, i / 16u),
    );
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let s = (raw.scales >> (4u * (i % 8u))) & 15u;
    return vec2f(half_of(raw.z, i / 8u) * f32(2u * s + 1u), 0.0);
}

fn packed_of(raw: Raw, i: u32) -> array<u32, 8> {
    let high = byte_of(raw.high, i);
    var n: array<u32, 8>;
    for (var j = 0u; j < 8u; j++) {
        let number = byte_of(raw.x[j / 4u], j) | (((high >> j) & 1u) << 8u);
        n[j] = with_signs(0x01010101u + 2u * four_codes(entry(plane.w, number)), raw.signs >> (4u * j));
    }
    return n;
}
