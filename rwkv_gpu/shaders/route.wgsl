// experts[t] = where the USED largest x[t, :] are, of equals the first; shares = their softmax      one workgroup per t
// The rank of an expert is how many come before it: each lane counts that for its own.
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, E]
@group(0) @binding(2) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;      // [T, USED]

var<workgroup> logits: array<f32, E>;
var<workgroup> best: array<f32, USED>;      // the largest, in order

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    for (var e = lane; e < E; e += WG) {
        logits[e] = x[t * E + e];
    }
    workgroupBarrier();
    for (var e = lane; e < E; e += WG) {
        let mine = logits[e];
        var rank = 0u;
        for (var other = 0u; other < E; other++) {
            let value = logits[other];
            rank += u32(value > mine || (value == mine && other < e));
        }
        if rank < USED {
            experts[t * USED + rank] = e;
            best[rank] = mine;
        }
    }
    workgroupBarrier();
    var sum = 0.0;      // of exp(x - best[0]), over all experts or over those chosen
    for (var e = lane; e < E; e += WG) {
        sum += exp(logits[e] - best[0]);
    }
    var scale = 1.0 / reduce_add(sum, lane);
    if NORMALISE == 1u {
        var chosen = 0.0;
        for (var j = 0u; j < USED; j++) {
            chosen += scale * exp(best[j] - best[0]);
        }
        scale /= max(chosen, LEAST_SUM);
    }
    for (var j = lane; j < USED; j += WG) {
        shares[t * USED + j] = scale * exp(best[j] - best[0]);
    }
}
