// Q3_K: weight = d · (s - 32) · (n - 4).      x: a word per run, bits 2k of byte b = low bits of n[4k+b]; y: a word per pair
// of runs, bit 4(i%2)+k of byte b = high bit; z: 12 bytes per superblock of 16 runs, s as in the file; w: its d as f16
// needs formats/packed: half_of; formats/unsigned: centred; words: word_at
const RUN = 16u;

struct Raw {
    x: u32,
    y: u32,
    low: u32,       // the low bits of s
    high: u32,
    w: u32,
}

fn run_raw(i: u32) -> Raw {
    let start = 3u * (i / 16u);
    return Raw(
        word_at(plane.x, i),
        word_at(plane.y, i / 2u),
        word_at(plane.z, start + ((i >> 2u) & 1u)),
        word_at(plane.z, start + 2u),
        word_at(plane.w, i / 32u),
    );
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let low = raw.low >> (8u * (i & 3u) + ((i >> 1u) & 4u));
    let high = raw.high >> (8u * (i & 3u) + ((i >> 1u) & 6u));
    let s = (low & 15u) | ((high & 3u) << 4u);
    return centred(half_of(raw.w, i / 16u) * (f32(s) - 32.0), 4.0);
}

fn packed_of(raw: Raw, i: u32) -> array<u32, 4> {
    let h = raw.y >> (4u * (i & 1u));
    let low = vec4u(raw.x, raw.x >> 2u, raw.x >> 4u, raw.x >> 6u) & vec4u(0x03030303u);
    let high = vec4u(h << 2u, h << 1u, h, h >> 1u) & vec4u(0x04040404u);
    let n = low | high;
    return array<u32, 4>(n.x, n.y, n.z, n.w);
}
