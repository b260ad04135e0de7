// Q6_K: weight = d · s · (n - 32).      x: 8 bytes a run, byte j = low nibbles of n[j], n[j+8]; y: a word a run, bits 2k
// of byte b = high bits of n[4k+b]; z: s as signed byte a run; w: d as f16 a superblock of 16 runs
const RUN = 16u;

fn run_scale(i: u32) -> vec2f {
    let s = unpack4xI8(word_at(plane.z, i / 4u))[i % 4u];
    return vec2f(half_at(plane.w, i / 16u) * f32(s), 0.0);
}

fn run_packed(i: u32) -> array<u32, 4> {
    let two = w[plane.x + i / 2u];      // runs: half of it is of this one
    let v = select(two.xy, two.zw, (i & 1u) == 1u);
    let h = word_at(plane.y, i);
    let low = vec4u(v, v >> vec2u(4u)) & vec4u(0x0f0f0f0fu);
    let high = vec4u(h << 4u, h << 2u, h, h >> 2u) & vec4u(0x30303030u);
    // n - 32 in each byte: no carry leaves a byte, as n <= 63
    let q = ((low | high) + vec4u(0x60606060u)) ^ vec4u(0x80808080u);
    return array<u32, 4>(q.x, q.y, q.z, q.w);
}
