// TQ2_0: weight = d · (n - 1).      x: a word a run, bits 2k of byte b = n[4k+b]; y: d as f16 a superblock of 16 runs
const RUN = 16u;

fn run_scale(i: u32) -> vec2f { return vec2f(half_at(plane.y, i / 16u), 0.0); }

fn run_packed(i: u32) -> array<u32, 4> {
    let v = word_at(plane.x, i);
    let q = less_one(vec4u(v, v >> 2u, v >> 4u, v >> 6u) & vec4u(0x03030303u));
    return array<u32, 4>(q.x, q.y, q.z, q.w);
}

// n - 1 in each byte: no carry leaves a byte, as n <= 3
fn less_one(n: vec4u) -> vec4u { return (n + vec4u(0x7f7f7f7fu)) ^ vec4u(0x80808080u); }
