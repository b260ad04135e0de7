// IQ2_S: weight = d · (s + 1/2) / 4 · n, n from a codebook.
// x: 16 words per superblock of 16 runs. First a byte for each 8 weights: the low bits of their codebook entry. Then a byte
// for each 8 weights: their signs. y: 4 words. First the 2 high bits of each entry, then 4 bits per run: s.
// z: d as f16; w: the codebook
// needs formats/codebook_iq2: eight_weights, sixteenths; formats/packed: half_of; words: word_at
const RUN = 16u;

struct Raw {
    x: u32,         // the low bits of two runs
    signs: u32,
    high: u32,      // the high bits of eight runs
    scales: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw {
    let r = i % 16u;
    let x = 16u * (i / 16u) + r / 2u;
    let y = 4u * (i / 16u) + r / 8u;
    return Raw(
        word_at(plane.x, x),
        word_at(plane.x, x + 8u),
        word_at(plane.y, y),
        word_at(plane.y, y + 2u),
        word_at(plane.z, i / 32u),
    );
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    return sixteenths(half_of(raw.z, i / 16u), (raw.scales >> (4u * (i % 8u))) & 15u);
}

fn packed_of(raw: Raw, i: u32) -> array<u32, 4> {
    let low = raw.x >> (16u * (i % 2u));
    let signs = raw.signs >> (16u * (i % 2u));
    let high = raw.high >> (4u * (i % 8u));
    let first = eight_weights(plane.w, (low & 255u) | ((high & 3u) << 8u), signs);
    let second = eight_weights(plane.w, ((low >> 8u) & 255u) | ((high & 12u) << 6u), signs >> 8u);
    return array<u32, 4>(first.x, first.y, second.x, second.y);
}
