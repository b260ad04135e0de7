// Pairs are neighbours: (2i, 2i + 1).
fn pair_of(d: u32) -> u32 { return d / 2u; }
fn partner_of(d: u32) -> u32 { return d ^ 1u; }
fn is_second(d: u32) -> bool { return d % 2u == 1u; }
