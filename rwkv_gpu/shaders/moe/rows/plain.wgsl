// A row of x lies there as it is.
fn gather_row(_start: u32, _lane: u32) {}
