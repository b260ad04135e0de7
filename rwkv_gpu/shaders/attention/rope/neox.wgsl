// Pairs stand half of the rotated dims apart: (i, i + DIMS / 2).
fn pair_of(d: u32) -> u32 { return d % (DIMS / 2u); }
fn partner_of(d: u32) -> u32 { return select(d - DIMS / 2u, d + DIMS / 2u, d < DIMS / 2u); }
fn is_second(d: u32) -> bool { return d >= DIMS / 2u; }
