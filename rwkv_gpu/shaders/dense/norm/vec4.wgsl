// Rows whose width is a multiple of 4.
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>; // [T, D / 4]

fn put(t: u32, d: u32, v: vec4f) { y[t * D4 + d] = v; }
