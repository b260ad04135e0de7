// Rows whose width is a multiple of 4.
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>; // [T, D / 4]
@group(0) @binding(5) var<storage, read> weight: array<vec4f>;  // [D / 4]

fn gain_at(d: u32) -> vec4f { return weight[d]; }
fn put(t: u32, d: u32, v: vec4f) { y[t * D4 + d] = v; }
