// q, k and v of one row for each sequence, by a convolution.
// needs conv/row: convolved
// needs recurrence/delta_tensors: parameter_at
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;                     // [T, ROW4], before the convolution
@group(0) @binding(9) var<storage, read_write> past: array<vec4f>;              // [states, PAST, ROW4], the oldest first

// A vec4 of q (0), k (1) or v (2); `own` says whether this head replaces what it reads.
fn qkv_at(row: u32, which: u32, d: u32, own: bool) -> vec4f {
    let c = which * K4 + d;
    return convolved(segments[row], c, qkv[row * ROW4 + c], vec4f(), own);
}

fn tap_at(i: u32) -> f32 { return parameter_at(TAPS_AT + i); }
