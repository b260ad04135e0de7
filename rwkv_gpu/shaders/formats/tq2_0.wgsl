// TQ2_0: weight = d · (n - 1).      x: a word per run, bits 2k of byte b = n[4k+b]; y: d as f16 per superblock of 16 runs
// needs formats/packed: half_of; formats/unsigned: centred; words: word_at
const RUN = 16u;

struct Raw {
    x: u32,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(word_at(plane.x, i), word_at(plane.y, i / 32u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return centred(half_of(raw.y, i / 16u), 1.0); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 4> {
    let n = vec4u(raw.x, raw.x >> 2u, raw.x >> 4u, raw.x >> 6u) & vec4u(0x03030303u);
    return array<u32, 4>(n.x, n.y, n.z, n.w);
}
