// The weight of a layer norm, for rows of any width.
@group(0) @binding(5) var<storage, read> weight: array<f32>;    // [D]

fn gain_at(d: u32) -> vec4f {
    let at = min(vec4u(4u * d) + vec4u(0u, 1u, 2u, 3u), vec4u(D - 1u));
    return vec4f(weight[at.x], weight[at.y], weight[at.z], weight[at.w]);
}
