// x needs no look before it is read.
const READY = true;

fn look(_lane: u32) {}
