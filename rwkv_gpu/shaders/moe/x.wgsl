// Parts that read x of an expert's product on matrix units.

//# floats: Rows of x as floats, which the reader rounds to multiples of UNIT.
// needs lib/matrix_units/halves: halves; lib/matrix_units/in_units: in_units; lib/matrix_units/rounded: halves_of
// needs rows: x4
alias XFour = vec4f;    // the form of four numbers in registers

// The place of a vec4 of a row, and the vec4 at a distance from it: zero beyond the row.
fn x_start(row: u32, four: u32) -> u32 { return row * INPUT_STRIDE + 4u * four; }

fn x_four(start: u32, four: u32, further: u32) -> XFour { return x4(start, 4u * further, max(K, 4u * four) - 4u * four); }

fn rounded_four(kept: XFour) -> vec4<f16> { return halves(halves_of(in_units(kept))); }

//# halves
// Rows of x as `round_rows` wrote them. If several workgroups share a processor, waiting for halves costs less than
// using words.
// needs lib/matrix_units/halves: halves
@group(0) @binding(2) var<storage, read> x: array<vec2u>;   // [X_ROWS, K / 4], then [X_ROWS] exponents, if rows have some

alias XFour = vec4<f16>;    // the form of four numbers in registers

// The place of a vec4 of a row, and the vec4 at a distance from it.
fn x_start(row: u32, four: u32) -> u32 { return row * PADDED4 + four; }

fn x_four(start: u32, _four: u32, further: u32) -> XFour { return halves(x[start + further]); }

fn rounded_four(kept: XFour) -> vec4<f16> { return kept; }

//# words
// Rows of x as `round_rows` wrote them. They stay words until they are stored: the kernel would wait for halves where they are
// loaded, as lib/matrix_units/halves says.
// needs lib/matrix_units/halves: halves
@group(0) @binding(2) var<storage, read> x: array<vec2u>;   // [X_ROWS, K / 4], then [X_ROWS] exponents, if rows have some

alias XFour = vec2u;    // the form of four numbers in registers

// The place of a vec4 of a row, and the vec4 at a distance from it.
fn x_start(row: u32, four: u32) -> u32 { return row * PADDED4 + four; }

fn x_four(start: u32, _four: u32, further: u32) -> XFour { return x[start + further]; }

fn rounded_four(kept: XFour) -> vec4<f16> { return halves(kept); }
