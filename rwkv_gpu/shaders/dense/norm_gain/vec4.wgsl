// The weight of a layer norm, for rows whose width is a multiple of 4.
@group(0) @binding(5) var<storage, read> weight: array<vec4f>;  // [D / 4]

fn gain_at(d: u32) -> vec4f { return weight[d]; }
