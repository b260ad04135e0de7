// Rows of x of any width: x4 is x[start + k .. start + k + 4], zero from k = width on.
@group(0) @binding(2) var<storage, read> x: array<f32>;         // [T, K]

fn x4(start: u32, k: u32, width: u32) -> vec4f {
    var values = vec4f();
    for (var j = 0u; j < 4u; j++) {     // FXC must know its end, as it has no vec4 that is written by index
        if k + j < width {
            values[j] = x[start + k + j];
        }
    }
    return values;
}
