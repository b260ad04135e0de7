// x, B and C of one row.

//# convolved: x, B and C of one row for each sequence, by a convolution.
// needs conv/row: convolved; ssm/ssd: parameter_at, projected_at
@group(0) @binding(1) var<storage, read_write> past: array<vec4f>;      // [states, PAST, ROW4], the oldest first

const TAPS_AT = 3u * H;                 // in the parameters: [4 ROW4, PAST + 1], then the bias [4 ROW4]
const BIAS_AT = TAPS_AT + 4u * ROW4 * (PAST + 1u);

// A vec4 of a row; `own` is true if this workgroup replaces the state that it reads.
fn xbc_at(segment: Segment, row: u32, c: u32, own: bool) -> vec4f {
    let at = row * STRIDE + FIRST + 4u * c;
    let here = vec4f(projected_at(at), projected_at(at + 1u), projected_at(at + 2u), projected_at(at + 3u));
    let bias = BIAS_AT + 4u * c;
    let added = vec4f(parameter_at(bias), parameter_at(bias + 1u), parameter_at(bias + 2u), parameter_at(bias + 3u));
    return convolved(segment, c, here, added, own);
}

fn tap_at(i: u32) -> f32 { return parameter_at(TAPS_AT + i); }

//# plain: x, B and C, computed by earlier dispatches
@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P], B and C [T, G, N] in one row

fn xbc_at(_segment: Segment, row: u32, c: u32, _own: bool) -> vec4f { return xbc[row * ROW4 + c]; }
