// x needs no look before it is read.
fn look(_lane: u32) {}
