// Parts that read rows of x.

//# scalar: Rows of x of any width: x4 is x[start + k .. start + k + 4], zero from k = width on.
@group(0) @binding(2) var<storage, read> x: array<f32>;         // [T, K]

fn x4(start: u32, k: u32, width: u32) -> vec4f {
    return vec4f(
        x_within(start, k, width), x_within(start, k + 1u, width), x_within(start, k + 2u, width), x_within(start, k + 3u, width),
    );
}

fn x_within(start: u32, k: u32, width: u32) -> f32 {
    var value = 0.0;
    if k < width {
        value = x[start + k];
    }
    return value;
}

//# vec4: Rows of x whose width is a multiple of 4: x4 is x[start + k .. start + k + 4], zero from k = width on.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [T, K / 4]

fn x4(start: u32, k: u32, width: u32) -> vec4f {
    if PADDED == 1u && k >= width {
        return vec4f();
    }
    return x[(start + k) / 4u];
}
