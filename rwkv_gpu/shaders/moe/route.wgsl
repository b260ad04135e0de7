// experts[t] = the indices of the USED largest x[t, :], the first of equals; shares from their logits       one workgroup per t
// needs answer: answer_scale; gating: weight_of; lanes: reduce_add, reduce_max, reduce_min; moe/shares: share_scale
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, E]
@group(0) @binding(2) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;      // [T, USED]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var logits: array<f32, USED>;
    var chosen: array<u32, USED>;
    var bound = 3.4e38;
    var before = 0u;    // the order of the last choice: smaller x follow, and equal x at higher places
    var of_chosen = 0.0;
    for (var j = 0u; j < USED; j++) {
        var most = -3.4e38;
        var place = E - 1u;
        for (var e = lane; e < E; e += WG) {
            let value = LOGIT_SCALE * x[t * E + e];
            if value > most && (value < bound || (value == bound && e > before)) {
                most = value;
                place = e;
            }
        }
        bound = reduce_max(most, lane);
        before = reduce_min(select(E - 1u, place, most == bound), lane);
        logits[j] = bound;
        chosen[j] = before;
        of_chosen += weight_of(bound, logits[0]);
        if lane == 0u {
            experts[t * USED + j] = before;
        }
    }
    var of_all = 0.0;
    if OF_ALL {
        for (var e = lane; e < E; e += WG) {
            of_all += weight_of(LOGIT_SCALE * x[t * E + e], logits[0]);
        }
        of_all = reduce_add(of_all, lane);
    }
    let scale = share_scale(of_all, of_chosen);
    for (var j = lane; j < USED; j += WG) {
        shares[t * USED + j] = scale * weight_of(logits[j], logits[0]) * answer_scale(chosen[j]);
    }
}
