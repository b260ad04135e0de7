// Sums by lane: each adds its own to the whole.
fn subtotal(v: u32) -> u32 { return v; }
fn leads() -> bool { return true; }
