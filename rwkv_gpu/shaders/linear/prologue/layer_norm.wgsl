// The row x of a step that has no other, normed while it is read.
// needs linear/prologue/single_row: normed_at
fn x4(_start: u32, k: u32, _width: u32) -> vec4f { return normed_at(k / 4u); }
