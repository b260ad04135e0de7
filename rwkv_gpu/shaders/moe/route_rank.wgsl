// experts[t] = the indices of the USED largest values by which experts are chosen, the first of equals; their shares       one workgroup per t
// The rank of an expert is the number of experts before it; each lane counts it for its own experts.
// needs answer: answer_scale; choosing: chosen_by; gating: weight_of, whole; groups: keep_groups
// needs lanes: reduce_add, reduce_max; moe/shares: share_scale
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, E]
@group(0) @binding(2) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;      // [T, USED]

const FOURS = (E + 3u) / 4u;

var<workgroup> orders: array<vec4f, FOURS>;     // the keys by which experts are chosen; after the last expert, the lowest key
var<workgroup> best: array<f32, USED>;          // logits of the chosen experts, in order
var<workgroup> chosen: array<u32, USED>;

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var most = 0.0;
    var of_all = 1.0;
    if BY_SCORE && OF_ALL {
        most = -3.4e38;
        for (var e = lane; e < E; e += WG) {
            most = max(most, logit_of(t, e));
        }
        most = reduce_max(most, lane);
        of_all = weights_of_all(t, most, lane);
    }
    for (var f = lane; f < FOURS; f += WG) {    // whole vec4s: lanes that share one would write over each other
        var four = vec4f(-3.4e38);
        for (var j = 0u; j < 4u; j++) {     // the end must be constant: FXC cannot write a vec4 by a variable index
            if 4u * f + j < E {
                let logit = logit_of(t, 4u * f + j);
                four[j] = logit;
                if BY_SCORE {
                    four[j] = chosen_by(weight_of(logit, most) / whole(of_all, 1.0), logit, 4u * f + j);
                }
            }
        }
        orders[f] = four;
    }
    workgroupBarrier();
    keep_groups(lane);
    for (var e = lane; e < E; e += WG) {
        let mine = orders[e / 4u][e % 4u];
        var before = vec4u();
        for (var f = 0u; f < FOURS; f++) {
            let values = orders[f];
            let earlier = vec4u(0u, 1u, 2u, 3u) + 4u * f < vec4u(e);
            before += select(vec4u(), vec4u(1u), (values > vec4f(mine)) | ((values == vec4f(mine)) & earlier));
        }
        let rank = before.x + before.y + before.z + before.w;
        if rank < USED {
            experts[t * USED + rank] = e;
            best[rank] = logit_of(t, e);
            chosen[rank] = e;
        }
    }
    workgroupBarrier();
    if !BY_SCORE {
        most = best[0];
        if OF_ALL {
            of_all = weights_of_all(t, most, lane);
        }
    }
    var of_chosen = 0.0;
    for (var j = 0u; j < USED; j++) {
        of_chosen += weight_of(best[j], most);
    }
    let scale = share_scale(of_all, of_chosen);
    for (var j = lane; j < USED; j += WG) {
        shares[t * USED + j] = scale * weight_of(best[j], most) * answer_scale(min(chosen[j], E - 1u));
    }
}

fn logit_of(t: u32, e: u32) -> f32 { return LOGIT_SCALE * x[t * E + e]; }

fn weights_of_all(t: u32, most: f32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var e = lane; e < E; e += WG) {
        sum += weight_of(logit_of(t, e), most);
    }
    return reduce_add(sum, lane);
}
