// Q2_K: weight = d · s · n - dmin · m.      x: a word a run, bits 2k of byte b = n[4k+b]; y: a byte a run,
// s | m << 4; z: d | dmin as f16 a superblock of 16 runs
const RUN = 16u;

fn run_scale(i: u32) -> vec2f {
    let d = unpack2x16float(word_at(plane.z, i / 16u));
    let s = byte_at(plane.y, i);
    return vec2f(d.x * f32(s & 15u), -d.y * f32(s >> 4u));
}

fn run_packed(i: u32) -> array<u32, 4> {
    let v = word_at(plane.x, i);
    let n = vec4u(v, v >> 2u, v >> 4u, v >> 6u) & vec4u(0x03030303u);
    return array<u32, 4>(n.x, n.y, n.z, n.w);
}
