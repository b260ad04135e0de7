// Q8_0: weight = d · q.      x: 32 signed bytes a run; y: d as f16 a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(half_at(plane.y, i), 0.0); }

fn run_packed(i: u32) -> array<u32, 8> {
    let a = w[plane.x + 2u * i];
    let b = w[plane.x + 2u * i + 1u];
    return array<u32, 8>(a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
}
