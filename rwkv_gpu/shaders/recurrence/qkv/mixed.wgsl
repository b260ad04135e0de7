// q, k and v as others computed them.
// needs lib/step: apart
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;             // q, k, v: columns of a row, or the parts of a stack

// A vec4 of q (0), k (1) or v (2).
fn qkv_at(row: u32, which: u32, d: u32, _own: bool) -> vec4f {
    if STACKED == 0u {
        return qkv[row * ROW4 + which * K4 + d];
    }
    let width = select(K4, D4, which == 2u);
    return qkv[which * apart(K4) + row * width + d];
}
