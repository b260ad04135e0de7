// Products read x as it is: nothing is done beside A x.
const BESIDE = 0u;
const PADDED = 0u;

fn beside(_group: u32, _lane: u32) {}
