// q, k and v of delta nets.

//# convolved: q, k and v of one row for each sequence, by a convolution.
// needs conv/row: convolved; recurrence/delta_tensors: parameter_at
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;                     // [T, ROW4], before the convolution
@group(0) @binding(9) var<storage, read_write> past: array<vec4f>;              // [states, PAST, ROW4], the oldest first

// A vec4 of q (0), k (1) or v (2); `own` is true if this head replaces the state that it reads.
fn qkv_at(row: u32, which: u32, d: u32, own: bool) -> vec4f {
    let c = which * K4 + d;
    return convolved(segments[row], c, qkv[row * ROW4 + c], vec4f(), own);
}

fn tap_at(i: u32) -> f32 { return parameter_at(TAPS_AT + i); }

//# mixed: q, k and v, computed by earlier dispatches.
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
