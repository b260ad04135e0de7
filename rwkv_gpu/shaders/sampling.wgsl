// Parts of sampling: masks, logits, lists and sums.

//# last_workgroup: The last workgroup to finish combines the results of all blocks of a row.
// needs lib/last_workgroup: count_done
@group(0) @binding(5) @coherent var<storage, read_write> parts: array<Part>;    // [R, BLOCKS]

fn chooses(row: u32, lane: u32) -> bool {
    count_done(row, BLOCKS, lane);
    return is_last.x == 1u;
}

//# list: The bounds of each row, and its candidate tokens.
@group(0) @binding(6) var<storage, read_write> list: array<vec2u>;      // [R, 1 + 2 LIST]

fn tell_bounds(row: u32, bounds: vec2u, leads: bool) {
    if leads {
        list[row * (1u + 2u * LIST)] = bounds;
    }
}

fn bounds_at(row: u32) -> vec2u { return list[row * (1u + 2u * LIST)]; }

//# list_coherent: The candidate tokens of each row, for the last workgroup, which has also found the bounds.
@group(0) @binding(6) @coherent var<storage, read_write> list: array<vec2u>;    // [R, 1 + 2 LIST]

var<private> own_bounds: vec2u;

fn tell_bounds(_row: u32, bounds: vec2u, _leads: bool) { own_bounds = bounds; }

fn bounds_at(_row: u32) -> vec2u { return own_bounds; }

//# masked: A bit for each token of a row, set if the token is allowed.
@group(0) @binding(4) var<storage, read> masks: array<u32>;     // [R, ceil(V / 32)]

fn allowed(row: u32, token: u32) -> bool {
    return ((masks[row * ((V + 31u) / 32u) + token / 32u] >> (token % 32u)) & 1u) == 1u;
}

//# next_dispatch: Another dispatch combines the results of the blocks of a row.
@group(0) @binding(5) var<storage, read_write> parts: array<Part>;      // [R, BLOCKS]

//# no_choice: No workgroup of this dispatch chooses.
fn chooses(_row: u32, _lane: u32) -> bool { return false; }

fn choose(_row: u32, _draw: Draw, _whole: Whole, _lane: u32) {}

//# no_mask: No row has a mask.
fn allowed(row: u32, token: u32) -> bool { return true; }

//# no_truncation: Every token of a row may stay.
// needs sampling/part: Best
fn is_cut(_draw: Draw) -> bool { return false; }

fn best_kept(_row: u32, _draw: Draw, _keys: vec2u, _whole: Whole, _lane: u32) -> Best { return Best(); }

//# order: Logits as integers with the same order.
const LOWEST = -3.3e38;         // the smallest possible logit
const GUESS = 12.0;             // nats: tokens that are less likely than the best by more than this are seldom kept

fn order(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(order: u32) -> f32 {
    return bitcast<f32>(select(~order, order & 0x7fffffffu, order >> 31u == 1u));
}

//# remember: Counts a new token, and uncounts the one that leaves the window.
// needs sampling/draw: is_set
fn remember(draw: Draw, token: u32) {
    if !is_set(draw, PENALISED) {
        return;
    }
    let ring = arrayLength(&sampled) / (RING + 1u) + draw.seat * RING;
    let at = draw.tokens;
    if draw.window > 0u && at >= draw.window {
        let leaves = draw.seat * PAIRS + sampled[ring + (at - draw.window) % RING];
        let rest = bitcast<f32>(counts[leaves].x) - 1.0;
        counts[leaves] = select(vec2u(0u), vec2u(bitcast<u32>(rest), counts[leaves].y), rest > 0.0);
    }
    sampled[ring + at % RING] = token;
    let place = draw.seat * PAIRS + token;
    let old = counts[place];
    let count = bitcast<f32>(old.x) * exp2(draw.fading * f32(at + 1u - old.y)) + 1.0;
    counts[place] = vec2u(bitcast<u32>(count), at + 1u);
}

//# sample_row: chosen[r] = the token drawn from row r      one workgroup per row
// needs choice: choose; sampling/whole: whole_of
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]

fn run(group: u32, lane: u32) {
    if group < step.rows {
        choose(group, draws[group], whole_of(group, lane), lane);
    }
}

//# subtotal_subgroup: Sums by subgroup: its first lane adds them to the whole.
fn subtotal(v: u32) -> u32 { return subgroupAdd(v); }
fn leads() -> bool { return subgroupExclusiveAdd(1u) == 0u; }

//# subtotal_workgroup: Sums by lane: each adds its own to the whole.
fn subtotal(v: u32) -> u32 { return v; }
fn leads() -> bool { return true; }

//# unadjusted: Logits without adjustment, for steps without penalties, masks and bounds.
// needs lanes: reduce_add, reduce_max
const CHANGES = false;

fn adjusted(_row: u32, _draw: Draw, _token: u32, raw: f32) -> f32 { return max(raw, LEAST); }

fn truncates(_draw: Draw) -> bool { return false; }

fn reduce_most(v: vec2f, lane: u32) -> vec2f { return vec2f(reduce_max(v.x, lane)); }
fn reduce_sums(v: vec2f, lane: u32) -> vec2f { return vec2f(reduce_add(v.x, lane)); }

fn remember(_draw: Draw, _token: u32) {}
