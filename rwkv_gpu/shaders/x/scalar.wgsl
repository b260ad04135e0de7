// Rows of x of any width. x4(t, k) = x[t, k .. k + 4], zero beyond the row.
@group(0) @binding(2) var<storage, read> x: array<f32>;         // [T, K]

fn x4(t: u32, k: u32) -> vec4f {
    var values = vec4f();
    for (var j = 0u; j < 4u && k + j < K; j++) {
        values[j] = x[t * K + k + j];
    }
    return values;
}
