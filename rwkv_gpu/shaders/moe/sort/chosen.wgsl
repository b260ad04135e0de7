// Another dispatch has chosen experts.
@group(0) @binding(8) var<storage, read> experts: array<u32>;           // [T, USED]

fn choose(_lane: u32) {}
