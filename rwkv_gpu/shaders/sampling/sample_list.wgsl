// list[r] = the tokens of row r that may be kept: those of at least a bound      one workgroup per row and block
// needs choice: choose; list: tell_bounds; logits: logit_of, truncates; row: chooses; sampling/order: order
// needs sampling/whole: whole_of
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]

var<workgroup> maxima: array<f32, BLOCKS>;  // the maximum of each block
var<workgroup> kth: u32;                    // the order of the k-th largest of them
var<workgroup> within: atomic<u32>;         // the number of listed tokens in this block
var<workgroup> start: u32;                  // the start of the block's tokens in the list

const MINE = SPAN / WG;                 // tokens of a lane
const FEW_MINE = MINE <= 4u;            // true if a lane keeps the orders of its tokens in registers; otherwise it computes them again

fn run(group: u32, lane: u32) {
    let row = group / BLOCKS;
    let block = group % BLOCKS;
    if row >= step.rows {
        return;
    }
    let draw = draws[row];
    if !truncates(draw) {
        return;
    }
    let first = block * SPAN + lane;
    var orders: array<u32, min(MINE, 4u)>;
    for (var n = 0u; FEW_MINE && n < MINE; n++) {
        orders[n % 4u] = order_at(row, draw, first + n * WG);
    }
    if lane == 0u {
        kth = 0u;
        start = 0u;
        atomicStore(&within, 0u);
    }
    workgroupBarrier();
    let whole = whole_of(row, lane);
    let bounds = bounds_of(row, draw, whole, lane);

    // Tokens are counted, get their places at once, and are then written.
    var mine = 0u;
    for (var n = 0u; n < MINE; n++) {
        if !FEW_MINE {
            orders[n % 4u] = order_at(row, draw, first + n * WG);
        }
        mine += u32(orders[n % 4u] >= bounds.x);
    }
    var place = 0u;
    if mine > 0u {
        place = atomicAdd(&within, mine);
    }
    workgroupBarrier();
    if lane == 0u && atomicLoad(&within) > 0u {
        start = atomicAdd(&parts[row * BLOCKS].listed, atomicLoad(&within));
    }
    workgroupBarrier();
    place += start;
    for (var n = 0u; n < MINE; n++) {
        if !FEW_MINE {
            orders[n % 4u] = order_at(row, draw, first + n * WG);
        }
        if orders[n % 4u] >= bounds.x {
            if place < LIST {
                list[row * (1u + 2u * LIST) + 1u + place] = vec2u(orders[n % 4u], first + n * WG);
            }
            place++;
        }
    }
    tell_bounds(row, bounds, block == 0u && lane == 0u);
    if chooses(row, lane) {
        choose(row, draw, whole, lane);
    }
}

// The order of a token; beyond the last token, less than any bound.
fn order_at(row: u32, draw: Draw, token: u32) -> u32 {
    return select(0u, order(logit_of(row, draw, min(token, V - 1u))), token < V);
}

// The smallest order that may be kept, which may be an estimate, and a lower bound of it.
fn bounds_of(row: u32, draw: Draw, whole: Whole, lane: u32) -> vec2u {
    let most = whole.most.x;
    let all = draw.top_k >= V;
    let by_share = all && draw.top_p < 1.0;
    var safe = order(LOWEST);
    if by_share {                   // the slack covers the rounding of exp
        safe = max(safe, order(most + log((1.0 - draw.top_p) * whole.sum.x / f32(V)) - 1e-3));
    }
    if all || draw.top_p >= 1.0 {
        safe = max(safe, order(max(most + draw.min_p, LOWEST)));
    }
    if draw.top_k <= BLOCKS {
        rank_maxima(draw.top_k, lane);
    }
    safe = max(safe, kth);
    return vec2u(select(safe, max(safe, order(most - GUESS)), by_share), safe);
}

// Finds the k-th greatest of the blocks' maxima. At least k tokens are as likely as that one.
fn rank_maxima(k: u32, lane: u32) {
    for (var n = 0u; n < TURNS; n++) {
        maxima[min(n * WG + lane, BLOCKS - 1u)] = found[n].whole.most.x;
    }
    workgroupBarrier();
    for (var b = lane; b < BLOCKS; b += WG) {
        let mine = maxima[b];
        var rank = 0u;
        for (var other = 0u; other < BLOCKS; other++) {
            let most = maxima[other];
            rank += u32(most > mine || (most == mine && other < b));
        }
        if rank == k - 1u {
            kth = order(mine);
        }
    }
    workgroupBarrier();
}
