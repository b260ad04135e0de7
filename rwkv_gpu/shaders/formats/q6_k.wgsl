// Q6_K: weight = d · s · (n - 32).      x: 8 bytes per run, byte j = low nibbles of n[j], n[j+8]; y: a word per run, bits 2k
// of byte b = high bits of n[4k+b]; z: s as signed byte per run; w: d as f16 per superblock of 16 runs
// needs formats/packed: half_of; formats/unsigned: centred; words: word_at
const RUN = 16u;

struct Raw {
    x: vec4u,       // two runs, of which this one needs half
    y: u32,
    z: u32,
    w: u32,
}

fn run_raw(i: u32) -> Raw {
    return Raw(w[plane.x + i / 2u], word_at(plane.y, i), word_at(plane.z, i / 4u), word_at(plane.w, i / 32u));
}

fn scale_of(raw: Raw, i: u32) -> vec2f {
    let s = i32(raw.z << (24u - 8u * (i % 4u))) >> 24u;
    return centred(half_of(raw.w, i / 16u) * f32(s), 32.0);
}

fn packed_of(raw: Raw, i: u32) -> array<u32, 4> {
    let v = select(raw.x.xy, raw.x.zw, (i & 1u) == 1u);
    let low = vec4u(v, v >> vec2u(4u)) & vec4u(0x0f0f0f0fu);
    let high = vec4u(raw.y << 4u, raw.y << 2u, raw.y, raw.y >> 2u) & vec4u(0x30303030u);
    let n = low | high;
    return array<u32, 4>(n.x, n.y, n.z, n.w);
}
