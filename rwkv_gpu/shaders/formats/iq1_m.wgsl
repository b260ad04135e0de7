// IQ1_M: weight = d · (2 s + 1) · (n - 1 ± 1/8), n from a codebook.
// x: 14 words per superblock of 16 runs. First a byte for each 8 weights: the low bits of their codebook entry. Then 4 bits
// for each 8 weights: the 3 high bits of the entry, and the sign of 1/8. Then 16 bits for each 4 runs: 3 bits of s for each
// run, and 4 bits of d as f16. y: the codebook
// needs formats/codebook: eight_codes, entry; formats/unsigned: centred; words: word_at
const RUN = 16u;

struct Raw {
    low: u32,       // the low bits of two runs
    high: u32,      // the high bits of four runs
    scales: vec2u,  // the scales of all 16 runs
}

fn run_raw(i: u32) -> Raw {
    let start = 14u * (i / 16u);
    let r = i % 16u;
    return Raw(
        word_at(plane.x, start + r / 2u),
        word_at(plane.x, start + 8u + r / 4u),
        vec2u(word_at(plane.x, start + 12u), word_at(plane.x, start + 13u)),
    );
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let r = i % 16u;
    let tops = (raw.scales >> vec2u(12u)) & vec2u(0xf000fu);
    let d = unpack2x16float((tops.x & 15u) | (tops.x >> 12u) | ((tops.y & 15u) << 8u) | ((tops.y >> 16u) << 12u)).x;
    let s = (select(raw.scales.x, raw.scales.y, r >= 8u) >> (16u * ((r / 4u) % 2u) + 3u * (r % 4u))) & 7u;
    return centred(d * f32(2u * s + 1u) * 0.125, 9.0);
}

fn packed_of(raw: Raw, i: u32) -> array<u32, 4> {
    let low = raw.low >> (16u * (i % 2u));
    let high = raw.high >> (8u * (i % 4u));
    let first = eighths(low & 255u, high & 15u);
    let second = eighths((low >> 8u) & 255u, (high >> 4u) & 15u);
    return array<u32, 4>(first.x, first.y, second.x, second.y);
}

// 8 n + 1 ± 1
fn eighths(low: u32, high: u32) -> vec2u {
    let codes = eight_codes(entry(plane.y, low | ((high & 7u) << 8u)));
    return (codes << vec2u(3u)) + vec2u(select(0x02020202u, 0u, high >= 8u));
}
