// Truncation of a row: top-k, then top-p, then min-p.
//
// Each keeps the largest logits, and the first ones among ties. So two numbers describe the result: the smallest kept order,
// and the last kept token of that order. Both are found by search over counts, or over probabilities as integers, whose sums
// do not depend on the order of addition.
// needs list: bounds_at; logits: logit_of, truncates; sampling/order: order, value_of
// needs sampling/part: Best, better, key_of; subtotal: leads, subtotal
var<workgroup> listed: atomic<u32>;
var<workgroup> tallies: array<atomic<u32>, 16>;
var<workgroup> few: array<vec2u, FEW>;          // the order and token of each candidate, if there are few
var<workgroup> few_shares: array<u32, FEW>;
var<workgroup> bins: array<atomic<u32>, BINS>;  // the counts or shares of entries, by distance from the greatest logit
var<workgroup> edge: u32;                       // the bin in which the sum reaches the goal
var<workgroup> agreed: bool;                    // the condition of `uniformly`

var<private> bound: u32;        // the smallest order that is kept
var<private> safe: u32;         // a lower bound of it, if it is an estimate
var<private> gathered: u32;     // the number of candidates in `few`
var<private> settled: bool;     // true if no further token is to be removed
var<private> last_tie: u32;     // the last kept token of the smallest order
var<private> count: u32;        // the number of entries that may be kept
var<private> in_list: bool;     // true if the entries are listed; otherwise all tokens are searched
var<private> half: u32;         // the half of the list that is in use
var<private> base: f32;         // the greatest logit
var<private> scale: f32;        // the factor of exp(x - base) that makes the sum of all WHOLE

const BINS = 128u;
const WHOLE = 0x1p31f;
const TOTAL = 0u;               // indices of tallies: the share of the list, of the top k, and the last kept entry
const TOP = 1u;
const LAST = 2u;
const BY_COUNT = 0u;
const BY_SHARE = 1u;
const BY_TOKEN = 2u;            // counts entries of the smallest order, by token
const TOKENS = 0x7fffffffu;     // greater than any token id
// Turns of a cut: search the whole range, near the smallest kept order, exactly there, above it, then the last of its ties.
const NEAR = 1u;
const FIND = NEAR + 3u;
const ABOVE = FIND + 8u;        // 17^8 > 2^32
const TIES = ABOVE + 1u;        // 17^5 > 2^20
const NOWHERE = 0xffffffffu;    // no entry has that order

fn is_cut(draw: Draw) -> bool { return truncates(draw); }

// The winner among the kept tokens of a lane.
fn best_kept(row: u32, draw: Draw, keys: vec2u, whole: Whole, lane: u32) -> Best {
    truncate(row, draw, whole.most.x, whole.sum.x, lane);
    var best = Best(LEAST, NO_TOKEN, 0.0);
    let size = select(count, gathered, settled);
    for (var i = lane; i < size; i += WG) {
        var entry = few[min(i, FEW - 1u)];
        if !settled {
            entry = entry_of(row, draw, i);
        }
        if is_kept(entry) {
            let x = value_of(entry.x);
            best = better(best, Best(key_of(draw, keys, entry.y, x, whole.most.x), entry.y, x));
        }
    }
    return best;
}

// The sort key of an entry, and its token.
fn entry_of(row: u32, draw: Draw, i: u32) -> vec2u {
    if in_list {
        return list[place_of(row, half) + i];
    }
    return vec2u(order(logit_of(row, draw, i)), i);
}

// The start of a half of the list.
fn place_of(row: u32, which: u32) -> u32 { return row * (1u + 2u * LIST) + 1u + which * LIST; }

fn is_kept(entry: vec2u) -> bool { return entry.x > bound || (entry.x == bound && entry.y <= last_tie); }

fn share_of(order: u32) -> u32 { return u32(exp(value_of(order) - base) * scale + 0.5); }

fn truncate(row: u32, draw: Draw, most: f32, sum: f32, lane: u32) {
    let bounds = bounds_at(row);
    let listed_count = atomicLoad(&parts[row * BLOCKS].listed);
    bound = bounds.x;
    safe = bounds.y;
    last_tie = NO_TOKEN;
    base = most;
    scale = WHOLE / sum;
    half = 0u;
    settled = false;
    in_list = listed_count <= LIST;
    count = select(V, listed_count, in_list);
    // First by count, then by share, if requested.
    let end = select(2u, 1u, draw.top_p >= 1.0);
    for (var measure = select(BY_COUNT, BY_SHARE, draw.top_k >= V); measure < end; measure++) {
        if cut(row, draw, measure, most, lane) {
            break;
        }
    }
    let least = order(max(most + draw.min_p, LOWEST));
    if least > bound {
        bound = least;
        last_tie = NO_TOKEN;
    }
}

// A condition that is the same in all lanes. Barriers may follow a branch on it. They may not follow a branch on a private
// variable or an atomic, because WGSL cannot prove these uniform.
fn uniformly(condition: bool, lane: u32) -> bool {
    if lane == 0u {
        agreed = condition;
    }
    return workgroupUniformLoad(&agreed);
}

// Lists the entries searched so far that may be kept, if the list has room for all of them.
fn enlist(row: u32, draw: Draw, lane: u32) {
    workgroupBarrier();
    if lane == 0u {
        atomicStore(&listed, 0u);
    }
    workgroupBarrier();
    let target_half = 1u - half;
    for (var i = lane; i < count && atomicLoad(&listed) <= LIST; i += WG) {
        let entry = entry_of(row, draw, i);
        if is_kept(entry) {
            let place = atomicAdd(&listed, 1u);
            if place < LIST {
                list[place_of(row, target_half) + place] = entry;
            }
        }
    }
    storageBarrier();
    workgroupBarrier();
    let found = atomicLoad(&listed);
    if found <= LIST {
        in_list = true;
        half = target_half;
        count = found;
    }
}

// Copies the few candidates into `few`, with their shares: all listed ones or, if the list is longer, those that
// together reach the goal and few more. None if they are too many.
fn gather(row: u32, draw: Draw, measure: u32, goal: u32, able: bool, lane: u32) {
    workgroupBarrier();
    for (var i = lane; i < max(BINS, 16u); i += WG) {
        atomicStore(&bins[i], 0u);
        atomicStore(&tallies[i % 16u], 0u);
    }
    if lane == 0u {
        atomicStore(&listed, 0u);
        edge = BINS;
    }
    workgroupBarrier();
    let many = uniformly(able && count > FEW, lane);
    if many {
        for (var i = lane; i < count; i += WG) {
            let entry = entry_of(row, draw, i);
            atomicAdd(&bins[bin_of(entry.x)], select(1u, share_of(entry.x), measure == BY_SHARE));
        }
        workgroupBarrier();
        find_edge(goal, lane);
        workgroupBarrier();
    }
    var share = 0u;
    for (var i = lane; able && i < count; i += WG) {
        let entry = entry_of(row, draw, i);
        if !many || bin_of(entry.x) <= edge {
            let place = atomicAdd(&listed, 1u);
            if place < FEW {
                few[place] = entry;
                few_shares[place] = share_of(entry.x);
                share += few_shares[place];
            }
        }
    }
    share = subtotal(share);
    if share > 0u && leads() {
        atomicAdd(&tallies[TOTAL], share);
    }
    workgroupBarrier();
    gathered = atomicLoad(&listed);
    gathered = select(0u, gathered, gathered <= FEW);
}

fn find_edge(goal: u32, lane: u32) {
    for (var i = lane; i < BINS; i += WG) {
        var before = 0u;
        for (var other = 0u; other < i; other++) {
            before += atomicLoad(&bins[other]);
        }
        if before < goal && before + atomicLoad(&bins[i]) >= goal {
            edge = i;
        }
    }
}

// The bin of an entry. Bins divide the range from the greatest logit to the estimated smallest one that is kept.
fn bin_of(order: u32) -> u32 { return u32(min((base - value_of(order)) * (f32(BINS) / GUESS), f32(BINS - 1u))); }

// Makes all cuts at once if few tokens may be kept: each is ranked by comparing it with all others. For shares the goal is known;
// for counts it is the share of the top k.
fn settle(row: u32, draw: Draw, measure: u32, known: u32, lane: u32) {
    let all = draw.top_k >= V;
    gather(row, draw, measure, known, in_list && (all || measure == BY_COUNT), lane);
    let size = gathered;
    // First the share of the top k, if top-p is relative to it; then the last kept entry.
    let kept = min(draw.top_k, size);
    if !all && draw.top_p < 1.0 {
        rank(draw, size, kept, 0u, 0u, lane);
    }
    workgroupBarrier();     // not in a loop over the two: FXC would assume that lanes may miss the barrier
    rank(draw, size, kept, 1u, select(goal_of(draw, atomicLoad(&tallies[TOP])), known, all), lane);
    workgroupBarrier();
    let enough = !all || draw.top_p >= 1.0 || bound <= safe || atomicLoad(&tallies[TOTAL]) >= known;
    if size > 0u && enough {
        settled = true;
        bound = atomicLoad(&tallies[LAST]);
        last_tie = atomicLoad(&tallies[LAST + 1u]);
    }
}

// Ranks each of the few candidates: turn 0 computes the share of the top k, turn 1 the last kept entry.
fn rank(draw: Draw, size: u32, kept: u32, turn: u32, goal: u32, lane: u32) {
    for (var i = lane; i < size; i += WG) {
        var place = 0u;
        var before = 0u;
        for (var other = 0u; other < size; other++) {
            let above = few[other].x > few[i].x || (few[other].x == few[i].x && few[other].y < few[i].y);
            place += u32(above);
            before += select(0u, few_shares[other], above);
        }
        let upto = before + few_shares[i];
        let is_last = place + 1u == kept || (turn == 1u && draw.top_p < 1.0 && upto >= goal);
        if is_last && turn == 0u {
            atomicStore(&tallies[TOP], upto);
        } else if is_last && place < kept && (draw.top_p >= 1.0 || before < goal) {
            atomicStore(&tallies[LAST], few[i].x);
            atomicStore(&tallies[LAST + 1u], few[i].y);
        }
    }
}

fn goal_of(draw: Draw, whole: u32) -> u32 { return max(1u, u32(ceil(draw.top_p * f32(whole)))); }

// Keeps the fewest largest values that sum to the goal; all if they do not reach it.
//
// Each turn of a search divides the range from low to high by 17. low is the greatest order, or place before TOKENS, from
// which on the entries are known to reach the goal. Returns true if no further token is to be removed.
fn cut(row: u32, draw: Draw, measure: u32, most: f32, lane: u32) -> bool {
    var what = measure;
    var goal = draw.top_k;
    var low = 0u;
    var high = 0u;
    for (var turn = 0u; turn < TIES + 5u; turn++) {
        if turn == FIND {
            // The bound is now so close that the list has little more than the kept entries.
            enlist(row, draw, lane);
        }
        if turn == 0u || turn == FIND {
            settle(row, draw, measure, select(goal, goal_of(draw, u32(WHOLE)), turn == 0u), lane);
            if uniformly(settled, lane) {
                return true;
            }
        }
        if turn == 0u && !in_list && draw.top_k >= V {
            bound = order(LOWEST);  // the share of all tokens must be known
        }
        if turn == NEAR {
            low = bound;
            high = order(most);
        }
        let apart = select((high - low) / 17u + 1u, 0u, low >= high);
        var first = low + apart;
        if turn == 0u || turn == ABOVE {
            first = select(bound, low + 1u, turn == ABOVE);
        } else if apart == 0u {
            first = NOWHERE;    // found
        }
        var sums = tally(row, draw, what, first, apart, lane);
        if turn == 0u {
            if measure == BY_SHARE {
                // The sum over all tokens, even if the list has only some of them.
                let whole = select(sums[0], u32(WHOLE), in_list && draw.top_k >= V);
                goal = goal_of(draw, whole);
                if draw.top_k >= V && sums[0] < goal && bound > safe {
                    bound = safe;
                    in_list = false;
                    count = V;
                }
            }
        } else if turn == ABOVE {
            var ties = max(goal, sums[0] + 1u) - sums[0];
            if measure == BY_SHARE {
                let each = max(share_of(low), 1u);
                ties = (ties + each - 1u) / each;
            }
            what = BY_TOKEN;
            goal = ties;
            low = TOKENS - V;
            high = TOKENS;
        } else {
            var enough = 0u;
            for (var i = 0u; i < 16u; i++) {
                enough += u32(sums[i] >= goal);
            }
            low += enough * apart;
            high = max(low, min(high, low + max(apart, 1u) - 1u));
            if turn < ABOVE && low > bound {
                bound = low;
                last_tie = NO_TOKEN;
            }
        }
    }
    last_tie = min(last_tie, TOKENS - low);
    return false;
}

// The sum of the kept entries first, first + apart, first + 2 apart ...; if apart is 0, of the first only.
fn tally(row: u32, draw: Draw, measure: u32, first: u32, apart: u32, lane: u32) -> array<u32, 16> {
    workgroupBarrier();
    for (var i = lane; i < 16u; i += WG) {
        atomicStore(&tallies[i], 0u);
    }
    workgroupBarrier();
    let steps = vec4u(0u, 1u, 2u, 3u) * apart;
    let bounds = array<vec4u, 4>(
        first + steps,
        first + 4u * apart + steps,
        first + 8u * apart + steps,
        first + 12u * apart + steps,
    );
    let end = select(count, 0u, first == NOWHERE);
    var sums = array<vec4u, 4>(vec4u(0u), vec4u(0u), vec4u(0u), vec4u(0u));
    for (var i = lane; i < end; i += WG) {
        let entry = entry_of(row, draw, i);
        if is_kept(entry) && (measure != BY_TOKEN || entry.x == bound) {
            var weight = 1u;
            if measure == BY_SHARE {
                weight = share_of(entry.x);
            }
            let at = select(entry.x, TOKENS - entry.y, measure == BY_TOKEN);
            sums[0] += select(vec4u(0u), vec4u(weight), vec4u(at) >= bounds[0]);
            sums[1] += select(vec4u(0u), vec4u(weight), vec4u(at) >= bounds[1]);
            sums[2] += select(vec4u(0u), vec4u(weight), vec4u(at) >= bounds[2]);
            sums[3] += select(vec4u(0u), vec4u(weight), vec4u(at) >= bounds[3]);
        }
    }
    for (var i = 0u; i < 16u; i++) {
        let sum = subtotal(sums[i / 4u][i % 4u]);
        if sum > 0u && leads() {
            atomicAdd(&tallies[i], sum);
        }
    }
    workgroupBarrier();
    var whole: array<u32, 16>;
    for (var i = 0u; i < 16u; i++) {
        whole[i] = atomicLoad(&tallies[i]);
    }
    return whole;
}
