// No workgroup of this dispatch chooses.
fn is_last(_row: u32, _lane: u32) -> bool { return false; }

fn choose(_row: u32, _draw: Draw, _whole: Whole, _lane: u32) {}
