// x needs no look before it is read.
const READS_X_EARLY = true;

fn find_statistics(_lane: u32) {}
