// The bias of a norm, for rows of any width.
@group(0) @binding(6) var<storage, read> bias: array<f32>;      // [D]

fn shift_at(d: u32) -> vec4f {
    let at = min(vec4u(4u * d) + vec4u(0u, 1u, 2u, 3u), vec4u(D - 1u));
    return vec4f(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
}
