// The bias of a norm, for rows of any width.
@group(0) @binding(6) var<storage, read> bias: array<f32>;      // [D]

fn shift_at(d: u32) -> vec4f {
    var shift = vec4f();
    for (var j = 0u; j < 4u; j++) {
        shift[j] = bias[min(4u * d + j, D - 1u)];
    }
    return shift;
}
