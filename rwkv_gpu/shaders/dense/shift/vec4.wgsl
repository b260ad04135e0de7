// The bias of a norm, for rows whose width is a multiple of 4.
@group(0) @binding(6) var<storage, read> bias: array<vec4f>;    // [D / 4]

fn shift_at(d: u32) -> vec4f { return bias[d]; }
