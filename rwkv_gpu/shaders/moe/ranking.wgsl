// The experts of a row, found by a subgroup: the largest logit first, then the next; ties go to the lower index.
// needs answer: answer_scale; choosing: chosen_by; gating: weight_of; moe/shares: share_scale; sum: group_sum
@group(0) @binding(4) var<storage, read> router_logits: array<f32>;     // [T, E]
@group(0) @binding(8) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(9) var<storage, read_write> shares: array<f32>;      // [T, USED]

const OWN_LOGITS = (E + SUBGROUP - 1u) / SUBGROUP;     // logits per lane; in wider subgroups several lanes have the same ones
const NOTHING = 0u;                     // below the order of any number

const_assert !(BY_SCORE && OF_ALL);     // logits cannot decide: scores must be known first

// The n-th best expert of row t. A caller that finds all USED of them can write each from a different lane.
fn rank(t: u32, n: u32, count: u32, writes: bool, lane: u32) -> u32 {
    var orders: array<u32, OWN_LOGITS>;
    for (var i = 0u; i < OWN_LOGITS; i++) {
        let e = min(i * SUBGROUP + lane % SUBGROUP, E - 1u);
        let x = logit_of(t, e);
        var key = x;
        if BY_SCORE {
            key = chosen_by(weight_of(x, 0.0), x, e);
        }
        orders[i] = select(NOTHING, order_of(key), e == i * SUBGROUP + lane % SUBGROUP);
    }
    var most = 0.0;
    var of_chosen = 0.0;    // the sum of the weights of the experts found
    var expert = E;         // the n-th best expert
    var own_expert = E;     // the expert that the lane proposes, and its logit
    var logit = 0.0;
    for (var j = 0u; j < count; j++) {
        var best = NOTHING;
        var first = E;
        for (var i = 0u; i < OWN_LOGITS; i++) {
            first = select(first, i * SUBGROUP + lane % SUBGROUP, orders[i] > best);
            best = max(best, orders[i]);
        }
        let top = subgroupMax(best);
        let found = subgroupMin(select(E, first, best == top));
        for (var i = 0u; i < OWN_LOGITS; i++) {
            orders[i] = select(orders[i], NOTHING, i * SUBGROUP + lane % SUBGROUP == found);
        }
        var x = value_of(top);
        if BY_SCORE {
            x = logit_of(t, min(found, E - 1u));
        }
        most = select(most, x, j == 0u);
        of_chosen += weight_of(x, most);
        expert = select(expert, found, j == n);
        own_expert = select(own_expert, found, j == lane);
        logit = select(logit, x, j == lane);
    }
    var of_all = of_chosen;
    if OF_ALL && count == USED {
        var rest = 0.0;
        for (var i = 0u; i < OWN_LOGITS; i++) {
            rest += select(0.0, weight_of(value_of(orders[i]), most), orders[i] != NOTHING);
        }
        of_all += group_sum(rest, SUBGROUP);
    }
    if writes && lane < USED {
        let share = share_scale(of_all, of_chosen) * weight_of(logit, most);
        experts[t * USED + lane] = own_expert;
        shares[t * USED + lane] = share * answer_scale(min(own_expert, E - 1u));
    }
    return expert;
}

fn logit_of(t: u32, e: u32) -> f32 { return LOGIT_SCALE * router_logits[t * E + e]; }

// Numbers as integers in the same order.
fn order_of(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(order: u32) -> f32 { return bitcast<f32>(select(~order, order & 0x7fffffffu, order >> 31u == 1u)); }
