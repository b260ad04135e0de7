// Parts of sampling: masks, logits, lists and sums.

//# accept: Counts the right drafts of each sequence: those that equal the token sampled before them. The token sampled after
// them becomes the last of the slot; its position and state are for the next step      one lane per row
@group(0) @binding(1) var<storage, read> chosen: array<vec4u>;          // [T]
@group(0) @binding(2) var<storage, read> ids: array<u32>;               // [T]
@group(0) @binding(3) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(4) var<storage, read> segments: array<u32>;          // [S, 16]; each row of a sequence may have its own
@group(0) @binding(5) var<storage, read_write> sampled: array<u32>;     // [S], rings, drafts
@group(0) @binding(6) var<storage, read_write> lengths: array<vec2u>;   // [S] of position, state

fn slot_of(t: u32) -> u32 { return segments[16u * row_segment[t] + 7u]; }

fn is_right(t: u32) -> bool {   // whether row t is a draft that equals the token sampled before it
    var id = ids[t];
    if id >> 31u == 1u {
        id = sampled[id & 0x7fffffffu];
    }
    return id == chosen[t - 1u].x;
}

fn run(group: u32, lane: u32) {
    let t = group * WG + lane;
    if t >= step.rows {
        return;
    }
    let slot = slot_of(t);
    if t > 0u {
        if slot_of(t - 1u) == slot {
            return;
        }
    }
    var last = t;
    for (var next = t + 1u; next < step.rows; next++) {
        if slot_of(next) != slot {
            break;
        }
        if !is_right(next) {
            break;
        }
        last = next;
    }
    let at = 16u * row_segment[t];
    let right = last - t;
    let state = select(segments[at + 4u], segments[at + 8u + min(right, 7u)], right < segments[at + 5u]);
    lengths[slot] = vec2u(segments[at + 2u] + 1u + right, state);
    if chosen[last].x != NO_TOKEN {     // otherwise the host samples
        sampled[slot] = chosen[last].x;
    }
}

//# excess: How much longer the host assumed a sequence to be than the device knows it to be.
@group(0) @binding(1) var<storage, read> given: array<u32>;         // segments [S, 16], as the host gives them
@group(0) @binding(2) var<storage, read> lengths: array<vec2u>;     // of slots: next position, state

fn known(s: u32) -> vec2u { return lengths[given[16u * s + 7u]]; }

fn is_assumed(s: u32) -> bool { return given[16u * s + 6u] > 0u; }

fn excess(s: u32) -> u32 { return select(0u, given[16u * s + 6u] - 1u - known(s).x, is_assumed(s)); }

//# known_draws: y = draws with the true numbers of draws and tokens      one lane per output row
// needs sampling/excess: excess
@group(0) @binding(3) var<storage, read> draws: array<u32>;         // [R, WORDS]
@group(0) @binding(4) var<storage, read> row_segment: array<u32>;   // [T]
@group(0) @binding(5) var<storage, read> output_rows: array<u32>;   // [R]
@group(0) @binding(6) var<storage, read_write> y: array<u32>;       // [R, WORDS]

fn run(group: u32, lane: u32) {
    let r = group * WG + lane;
    if r >= step.rows {
        return;
    }
    let more = excess(row_segment[output_rows[r]]);
    for (var i = 0u; i < WORDS; i++) {
        y[r * WORDS + i] = draws[r * WORDS + i] - select(0u, more, i == NUMBER || i == TOKENS);
    }
}

//# known_places: y = true position of each row, and its row counted over all pages      one lane per row
// needs sampling/excess: excess
@group(0) @binding(3) var<storage, read> places: array<vec2u>;      // [T] of position, row of all pages
@group(0) @binding(4) var<storage, read> row_segment: array<u32>;   // [T]
@group(0) @binding(5) var<storage, read> pages: array<u32>;         // [S, PAGES]
@group(0) @binding(6) var<storage, read_write> y: array<vec2u>;     // [T]

fn run(group: u32, lane: u32) {
    let t = group * WG + lane;
    if t >= step.rows {
        return;
    }
    let s = row_segment[t];
    let at = places[t].x - excess(s);
    y[t] = vec2u(at, pages[s * PAGES + at / PAGE] * PAGE + at % PAGE);
}

//# known_segments: y = segments with true starts, and the state to continue      one lane per segment
// needs sampling/excess: excess, is_assumed, known
@group(0) @binding(3) var<storage, read_write> y: array<u32>;       // [S, 16]

fn run(group: u32, lane: u32) {
    let s = group * WG + lane;
    if s >= step.segments {
        return;
    }
    for (var i = 0u; i < 16u; i++) {
        y[16u * s + i] = given[16u * s + i];
    }
    if is_assumed(s) {
        y[16u * s + 2u] -= excess(s);
        y[16u * s + 3u] = known(s).y;
    }
}

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
    let ring = arrayLength(&sampled) / (RING + 1u) + draw.slot * RING;
    let at = draw.tokens;
    if draw.window > 0u && at >= draw.window {
        let leaves = draw.slot * PAIRS + sampled[ring + (at - draw.window) % RING];
        let rest = bitcast<f32>(counts[leaves].x) - 1.0;
        counts[leaves] = select(vec2u(0u), vec2u(bitcast<u32>(rest), counts[leaves].y), rest > 0.0);
    }
    sampled[ring + at % RING] = token;
    let place = draw.slot * PAIRS + token;
    let old = counts[place];
    let count = bitcast<f32>(old.x) * exp2(draw.log2_decay * f32(at + 1u - old.y)) + 1.0;
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
