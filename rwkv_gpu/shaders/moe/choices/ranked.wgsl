// Every choice is a tile, of an expert that each subgroup finds by itself: the largest logit of its row, then the next, up to
// the choice's own, of equals the first. The first workgroup of a row tells all of them to those who come later.
// needs answer: answer_scale
// needs choosing: chosen_by
// needs gating: weight_of
// needs moe/shares: share_scale
// needs moe/tiles: Tile, tile_here
// needs sum: group_sum
@group(0) @binding(4) var<storage, read> router_logits: array<f32>;            // [T, E] logits
@group(0) @binding(8) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(9) var<storage, read_write> shares: array<f32>;      // [T, USED]

const EACH = (E + SUBGROUP - 1u) / SUBGROUP;    // logits of a lane; where subgroups are wider, several lanes have the same
const NOTHING = 0u;                                // comes after the order of any number

const_assert USED <= WG;
const_assert !(BY_SCORE && OF_ALL);     // the scores would have to be known first

fn tile_at(n: u32, block: u32, lane: u32) -> Tile {
    if n >= step.rows * USED {
        return Tile();
    }
    let t = n / USED;
    let writes_routing = block == 0u && n % USED == 0u;
    var orders: array<u32, EACH>;
    for (var i = 0u; i < EACH; i++) {
        let e = min(i * SUBGROUP + lane % SUBGROUP, E - 1u);
        let x = logit_of(t, e);
        var key = x;
        if BY_SCORE {
            key = chosen_by(weight_of(x, 0.0), x, e);
        }
        orders[i] = select(NOTHING, order(key), e == i * SUBGROUP + lane % SUBGROUP);
    }
    var most = 0.0;
    var of_chosen = 0.0;    // of the weights of those found
    var expert = E;         // this choice's
    var own_expert = E;           // that a lane tells of, and its logit
    var logit = 0.0;
    for (var j = 0u; j < select(n % USED + 1u, USED, writes_routing); j++) {
        var best = NOTHING;
        var first = E;
        for (var i = 0u; i < EACH; i++) {
            first = select(first, i * SUBGROUP + lane % SUBGROUP, orders[i] > best);
            best = max(best, orders[i]);
        }
        let top = subgroupMax(best);
        let found = subgroupMin(select(E, first, best == top));
        for (var i = 0u; i < EACH; i++) {
            orders[i] = select(orders[i], NOTHING, i * SUBGROUP + lane % SUBGROUP == found);
        }
        var x = value_of(top);
        if BY_SCORE {
            x = logit_of(t, min(found, E - 1u));
        }
        most = select(most, x, j == 0u);
        of_chosen += weight_of(x, most);
        expert = select(expert, found, j == n % USED);
        own_expert = select(own_expert, found, j == lane);
        logit = select(logit, x, j == lane);
    }
    if writes_routing {
        var of_all = of_chosen;
        if OF_ALL {
            var rest = 0.0;
            for (var i = 0u; i < EACH; i++) {
                rest += select(0.0, weight_of(value_of(orders[i]), most), orders[i] != NOTHING);
            }
            of_all += group_sum(rest, SUBGROUP);
        }
        if lane < USED {
            let share = share_scale(of_all, of_chosen) * weight_of(logit, most);
            experts[t * USED + lane] = own_expert;
            shares[t * USED + lane] = share * answer_scale(min(own_expert, E - 1u));
        }
    }
    return tile_here(expert, n, 1u);
}

fn choice_at(place: u32) -> u32 { return place; }

fn logit_of(t: u32, e: u32) -> f32 { return LOGIT_SCALE * router_logits[t * E + e]; }

// Numbers as whole ones of the same order.
fn order(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(order: u32) -> f32 { return bitcast<f32>(select(~order, order & 0x7fffffffu, order >> 31u == 1u)); }
