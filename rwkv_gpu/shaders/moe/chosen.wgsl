// The experts that row t has chosen, and their shares, for all lanes of a workgroup.
// needs bias: bias_of
// needs shares: share_at
@group(0) @binding(4) var<storage, read> experts: array<u32>;           // [T, USED]

var<workgroup> chosen: array<u32, USED>;
var<workgroup> weights: array<f32, USED>;

fn choose(t: u32, lane: u32) {
    for (var j = lane; j < USED; j += WG) {
        chosen[j] = min(experts[t * USED + j], shard.experts - 1u);
        weights[j] = share_at(t * USED + j);
    }
    workgroupBarrier();
}

// The biases of row m of the chosen experts, each by its share.
fn biases_of(m: u32) -> f32 {
    var sum = 0.0;
    if BIASED {
        for (var j = 0u; j < USED; j++) {
            sum = fma(weights[j], bias_of(0u, chosen[j] * M + m), sum);
        }
    }
    return sum;
}
