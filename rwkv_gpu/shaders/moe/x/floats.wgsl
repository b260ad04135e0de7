// Rows of x as floats, which whoever reads them rounds: all are multiples of UNIT.
// needs lib/matrix_units/halves: halves
// needs lib/matrix_units/in_units: in_units
// needs lib/matrix_units/rounded: halves_of
// needs rows: x4
alias XFour = vec4f;    // as it is kept on its way

// Where a four of a row lies, and what lies so many fours behind it: zero behind the row.
fn x_start(row: u32, four: u32) -> u32 { return row * INPUT_STRIDE + 4u * four; }

fn x_four(start: u32, four: u32, further: u32) -> XFour { return x4(start, 4u * further, max(K, 4u * four) - 4u * four); }

fn rounded_four(kept: XFour) -> vec4<f16> { return halves(halves_of(in_units(kept))); }
