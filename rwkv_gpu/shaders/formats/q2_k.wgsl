// Q2_K: weight = d · s · n - dmin · m.      x: a word per run, bits 2k of byte b = n[4k+b]; y: a byte per run,
// s | m << 4; z: d | dmin as f16 per superblock of 16 runs
// needs formats/packed: byte_of; words: word_at
const RUN = 16u;

struct Raw {
    x: u32,
    y: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(word_at(plane.x, i), word_at(plane.y, i / 4u), word_at(plane.z, i / 16u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let d = unpack2x16float(raw.z);
    let s = byte_of(raw.y, i);
    return vec2f(d.x * f32(s & 15u), -d.y * f32(s >> 4u));
}

fn packed_of(raw: Raw, _i: u32) -> array<u32, 4> {
    let n = vec4u(raw.x, raw.x >> 2u, raw.x >> 4u, raw.x >> 6u) & vec4u(0x03030303u);
    return array<u32, 4>(n.x, n.y, n.z, n.w);
}
