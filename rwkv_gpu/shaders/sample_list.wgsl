// list[r] = the tokens of row r that may be kept: those of at least a bound      one workgroup per row and block
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]
@group(0) @binding(3) var<storage, read_write> counts: array<vec2u>;    // [S, V]: how often, and when last

var<workgroup> found: atomic<u32>;  // in this block
var<workgroup> start: u32;          // where they are listed
var<workgroup> kth: u32;            // the order of the k-th block

const GUESS = 12.0;     // what is less likely by so many nats seldom stays

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
    if lane == 0u {
        atomicStore(&found, 0u);
    }
    let bounds = bounds_of(row, draw, lane);

    // Counted, then given a place at once, then written.
    let first = block * SPAN + lane;
    let end = min(V, (block + 1u) * SPAN);
    var mine = 0u;
    for (var token = first; token < end; token += WG) {
        mine += u32(order(logit_of(row, draw, token)) >= bounds.x);
    }
    var place = 0u;
    if mine > 0u {
        place = atomicAdd(&found, mine);
    }
    workgroupBarrier();
    if lane == 0u {
        start = atomicAdd(&parts[row * BLOCKS].listed, atomicLoad(&found));
    }
    workgroupBarrier();
    place += start;
    for (var token = first; token < end; token += WG) {
        let entry = vec2u(order(logit_of(row, draw, token)), token);
        if entry.x >= bounds.x {
            if place < LIST {
                list[row * (1u + 2u * LIST) + 1u + place] = entry;
            }
            place++;
        }
    }
    if block == 0u && lane == 0u {
        list[row * (1u + 2u * LIST)] = bounds;
    }
    join(row, draw, lane);
}

// The least order that may be kept, which may be a guess, and what is surely not above it.
fn bounds_of(row: u32, draw: Draw, lane: u32) -> vec2u {
    var most = LEAST;
    for (var b = lane; b < BLOCKS; b += WG) {
        most = max(most, parts[row * BLOCKS + b].most);
    }
    most = reduce_max(most, lane);
    var sum = 0.0;
    for (var b = lane; b < BLOCKS; b += WG) {
        let part = parts[row * BLOCKS + b].most;
        sum += select(0.0, parts[row * BLOCKS + b].sum * exp(part - most), part > LEAST);
    }
    sum = reduce_add(sum, lane);

    let all = draw.top_k >= V;
    var safe = order(LOWEST);
    if !all && draw.top_k <= BLOCKS {
        safe = max(safe, block_order(row, draw.top_k, lane));
    }
    if all && draw.top_p < 1.0 {    // the slack is for what exp rounds
        safe = max(safe, order(most + log((1.0 - draw.top_p) * sum / f32(V)) - 1e-3));
    }
    if all || draw.top_p >= 1.0 {
        safe = max(safe, order(max(most + draw.min_p, LOWEST)));
    }
    return vec2u(select(safe, max(safe, order(most - GUESS)), all && draw.top_p < 1.0), safe);
}

// The k-th of the greatest of each block: at least k tokens are of that order.
fn block_order(row: u32, k: u32, lane: u32) -> u32 {
    for (var b = lane; b < BLOCKS; b += WG) {
        let mine = parts[row * BLOCKS + b].most;
        var rank = 0u;
        for (var other = 0u; other < BLOCKS; other++) {
            let most = parts[row * BLOCKS + other].most;
            rank += u32(most > mine || (most == mine && other < b));
        }
        if rank == k - 1u {
            kth = order(mine);
        }
    }
    workgroupBarrier();
    return kth;
}
