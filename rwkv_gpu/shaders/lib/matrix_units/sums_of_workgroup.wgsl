// A workgroup has all columns of its rows: what its subgroups have found is all there is.
// needs lib/matrix_units/sums: own_sums
fn last_of_all(_first: u32, _lane: u32) -> u32 { return 1u; }

fn sums_at(n: u32) -> vec2f { return own_sums(n); }
