// experts[t] = where the USED largest x[t, :] are, of equals the first; shares = their softmax      one workgroup per t
// The rank of an expert is how many come before it: each lane counts that for its own.
// needs lanes: reduce_add
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, E]
@group(0) @binding(2) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;      // [T, USED]

const FOURS = (E + 3u) / 4u;

var<workgroup> logits: array<vec4f, FOURS>;     // behind the last, what comes before nothing
var<workgroup> best: array<f32, USED>;      // the largest, in order

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    for (var f = lane; f < FOURS; f += WG) {    // whole vec4s: lanes that share one would write over each other
        var four = vec4f(-3.4e38);
        for (var j = 0u; j < 4u && 4u * f + j < E; j++) {
            four[j] = x[t * E + 4u * f + j];
        }
        logits[f] = four;
    }
    workgroupBarrier();
    for (var e = lane; e < E; e += WG) {
        let mine = logits[e / 4u][e % 4u];
        var before = vec4u();
        for (var f = 0u; f < FOURS; f++) {
            let values = logits[f];
            let earlier = vec4u(0u, 1u, 2u, 3u) + 4u * f < vec4u(e);
            before += select(vec4u(), vec4u(1u), (values > vec4f(mine)) | ((values == vec4f(mine)) & earlier));
        }
        let rank = before.x + before.y + before.z + before.w;
        if rank < USED {
            experts[t * USED + rank] = e;
            best[rank] = mine;
        }
    }
    workgroupBarrier();
    var sum = 0.0;      // of exp(x - best[0]), over all experts or over those chosen
    for (var e = lane; e < E; e += WG) {
        sum += exp(logits[e / 4u][e % 4u] - best[0]);
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
