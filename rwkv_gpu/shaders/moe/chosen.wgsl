// The experts that row t has chosen, and their shares, for all lanes of a workgroup.
@group(0) @binding(4) var<storage, read> experts: array<u32>;           // [T, USED]
@group(0) @binding(7) var<storage, read> shares: array<f32>;            // [T, USED]

var<workgroup> chosen: array<u32, USED>;
var<workgroup> weights: array<f32, USED>;

fn choose(t: u32, lane: u32) {
    for (var j = lane; j < USED; j += WG) {
        chosen[j] = min(experts[t * USED + j], shard.experts - 1u);
        weights[j] = shares[t * USED + j];
    }
    workgroupBarrier();
}
