@group(0) @binding(7) var<storage, read> shares: array<f32>;            // [T, USED]

fn share_at(n: u32) -> f32 { return shares[n]; }
