// Rows of any width.
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn put(t: u32, d: u32, v: vec4f) {
    for (var j = 0u; j < 4u && 4u * d + j < D; j++) {
        y[t * D + 4u * d + j] = v[j];
    }
}
