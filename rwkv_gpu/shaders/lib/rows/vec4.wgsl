// Rows of x whose width is a multiple of 4: x4 is x[start + k .. start + k + 4], zero from k = width on.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [T, K / 4]

fn x4(start: u32, k: u32, width: u32) -> vec4f {
    if PADDED == 1u && k >= width {
        return vec4f();
    }
    return x[(start + k) / 4u];
}
