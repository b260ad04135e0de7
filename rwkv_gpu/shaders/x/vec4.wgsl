// Rows of x whose width is a multiple of 4. x4(t, k) = x[t, k .. k + 4], zero beyond the row.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [T, K / 4]

const_assert K % 4u == 0u;

fn x4(t: u32, k: u32) -> vec4f {
    if K % RUN != 0u && k >= K {
        return vec4f();
    }
    return x[(t * K + k) / 4u];
}
