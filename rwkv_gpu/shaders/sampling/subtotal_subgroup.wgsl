// Sums by subgroup: its first lane adds them to the whole.
fn subtotal(v: u32) -> u32 { return subgroupAdd(v); }
fn leads() -> bool { return subgroupExclusiveAdd(1u) == 0u; }
