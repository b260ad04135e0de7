// The row x of a step that has no other, normed and mixed with the row before it while it is read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous as the state holds it, or 0 for a fresh sequence
// needs linear/prologue/single_row: normed_at
// needs normed row: store_normed
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> shift_state: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<uniform> segment: Segment;

fn x4(start: u32, k: u32, _width: u32) -> vec4f {
    let d = k / 4u;
    let here = normed_at(d);
    store_normed(d, here);
    return here + (select(shift_state[segment.source * D4 + d], vec4f(), segment.start == 0u) - here) * mix[start / 4u + d];
}
