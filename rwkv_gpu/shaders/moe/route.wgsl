// experts[t] = where the USED largest x[t, :] are, of equals the first; shares = their softmax      one workgroup per t
// needs lanes: reduce_add, reduce_max, reduce_min
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, E]
@group(0) @binding(2) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;      // [T, USED]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var logits: array<f32, USED>;
    var sum = 0.0;      // of exp(x - logits[0]), over all experts or over those chosen
    var bound = 3.4e38;
    var before = 0u;    // what was chosen last: smaller x come after it, and equals at higher places
    for (var j = 0u; j < USED; j++) {
        var most = -3.4e38;
        var place = E - 1u;
        for (var e = lane; e < E; e += WG) {
            let value = x[t * E + e];
            if value > most && (value < bound || (value == bound && e > before)) {
                most = value;
                place = e;
            }
        }
        bound = reduce_max(most, lane);
        before = reduce_min(select(E - 1u, place, most == bound), lane);
        logits[j] = bound;
        if lane == 0u {
            experts[t * USED + j] = before;
        }
    }
    for (var e = lane; e < E; e += WG) {
        sum += exp(x[t * E + e] - logits[0]);
    }
    var scale = 1.0 / reduce_add(sum, lane);
    if NORMALISE == 1u {
        var chosen = 0.0;
        for (var j = 0u; j < USED; j++) {
            chosen += scale * exp(logits[j] - logits[0]);
        }
        scale /= max(chosen, LEAST_SUM);
    }
    for (var j = lane; j < USED; j += WG) {
        shares[t * USED + j] = scale * exp(logits[j] - logits[0]);
    }
}
