// Rows of x as `round_rows` wrote them. Where several workgroups share a processor, waiting for halves costs less than words.
// needs lib/matrix_units/halves: halves
@group(0) @binding(2) var<storage, read> x: array<vec2u>;   // [X_ROWS, K / 4], then [X_ROWS] exponents, if rows have some

alias XFour = vec4<f16>;    // as it is kept on its way

// Where a four of a row lies, and what lies so many fours behind it.
fn x_start(row: u32, four: u32) -> u32 { return row * PADDED4 + four; }

fn x_four(start: u32, _four: u32, further: u32) -> XFour { return halves(x[start + further]); }

fn rounded_four(kept: XFour) -> vec4<f16> { return kept; }
