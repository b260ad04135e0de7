// y[t, l] = the positions of the COUNT blocks with the largest scores, ascending, and of an incomplete block if that has no score
//
// A workgroup has every GROUPS-th list. If there are at most COUNT blocks, a row gets all positions. Otherwise, a radix
// search (one byte of the scores at a time) finds the smallest chosen score, and how many blocks have it.
// needs index: score_of, scored_blocks; latent read: latent8; pages of rows: segment_of
@group(0) @binding(1) var<storage, read> r: array<vec4f>;               // [T, H, N / 4]
@group(0) @binding(3) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)
@group(0) @binding(4) var<storage, read_write> y: array<u32>;           // [T, LISTS, LENGTH]
@group(0) @binding(5) var<storage, read> keys: array<vec4u>;            // [pages, PAGE, N]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> scores: array<u32>;      // [GROUPS, CANDIDATES], in the order of the scores

const N4 = N / 4u;
const DIGITS = 256u;

var<workgroup> counts: array<atomic<u32>, DIGITS>;  // the number of scores with each digit
var<workgroup> cut: vec2u;                          // the digits of the smallest chosen score, and how many blocks have that score
var<workgroup> before: array<vec2u, WG>;            // for each lane, the number of its blocks above that score, and of those equal to it

fn run(group: u32, lane: u32) {
    for (var each = group; each < step.rows * LISTS; each += GROUPS) {
        let t = each / LISTS;
        let length = (places[t].x + 1u) / ENTRY;
        let blocks = scored_blocks(length);
        let chosen = min(length, (COUNT - 1u) * BLOCK);     // positions that are written in any case
        for (var i = chosen + lane; i < LENGTH; i += WG) {
            y[each * LENGTH + i] = NO_KEY;
        }
        storageBarrier();
        workgroupBarrier();
        if blocks <= COUNT {
            for (var i = lane; i < length; i += WG) {
                y[each * LENGTH + i] = i;
            }
        } else {
            let first = group * CANDIDATES;
            score(t, each % LISTS, length, blocks, first, lane);
            search(blocks, first, lane);
            list(each * LENGTH, length, blocks, first, lane);
        }
    }
}

fn score(t: u32, head: u32, length: u32, blocks: u32, first: u32, lane: u32) {
    for (var b = lane; b < blocks; b += WG) {
        scores[first + b] = score_of(t, head, b, length);
    }
    storageBarrier();
    workgroupBarrier();
}

// The key at a position of the sequence of row t.
fn key_at(t: u32, position: u32) -> array<vec4f, N4> {
    let last = position * ENTRY + ENTRY - 1u;
    let row = pages[segment_of(t) * MAX_PAGES + last / PAGE] * (PAGE / PER_ROW) + last % PAGE / ENTRY;
    var key: array<vec4f, N4>;
    for (var i = 0u; i < N4 / 2u; i++) {
        let both = latent8(row * (N4 / 2u) + i);
        key[2u * i] = both.low;
        key[2u * i + 1u] = both.high;
    }
    return key;
}

// q · k for a query; `query` counts over all rows and heads.
fn product(query: u32, key: ptr<function, array<vec4f, N4>>) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < N4; i++) {
        sum += dot(r[query * N4 + i], (*key)[i]);
    }
    return sum;
}

// An integer that orders like x; -0 counts as 0.
fn ordered(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return bits ^ select(0x80000000u, 0xffffffffu, bits >= 0x80000000u);
}

fn search(blocks: u32, first: u32, lane: u32) {
    if lane == 0u {
        cut = vec2u(0u, COUNT);
    }
    for (var byte = 0u; byte < 4u; byte++) {
        let shift = 24u - 8u * byte;
        for (var i = lane; i < DIGITS; i += WG) {
            atomicStore(&counts[i], 0u);
        }
        workgroupBarrier();
        let above = cut.x;
        for (var b = lane; b < blocks; b += WG) {
            let s = scores[first + b];
            if byte == 0u || s >> min(shift + 8u, 31u) == above {
                atomicAdd(&counts[(s >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if lane == 0u {
            var n = 1u;     // counts the digits from the highest to the lowest
            var left = cut.y;
            while n < DIGITS && atomicLoad(&counts[DIGITS - n]) < left {
                left -= atomicLoad(&counts[DIGITS - n]);
                n++;
            }
            cut = vec2u((cut.x << 8u) | (DIGITS - n), left);
        }
        workgroupBarrier();
    }
}

// Writes the positions of the chosen blocks in order, from `at` on. A lane has neighbouring blocks; their place follows
// from the counts of earlier lanes. Positions after all scored blocks come last.
fn list(at: u32, length: u32, blocks: u32, first: u32, lane: u32) {
    let each = (blocks + WG - 1u) / WG;
    let start = min(lane * each, blocks);
    let end = min(start + each, blocks);
    var own = vec2u();
    for (var b = start; b < end; b++) {
        own += select(vec2u(), vec2u(1u), vec2<bool>(scores[first + b] > cut.x, scores[first + b] == cut.x));
    }
    before[lane] = own;
    workgroupBarrier();
    if lane == 0u {
        var total = vec2u();
        for (var i = 0u; i < WG; i++) {
            let next = total + before[i];
            before[i] = total;
            total = next;
        }
    }
    workgroupBarrier();
    var seen = before[lane];
    for (var b = start; b < end; b++) {
        let s = scores[first + b];
        if s > cut.x || (s == cut.x && seen.y < cut.y) {
            let place = at + (seen.x + min(seen.y, cut.y)) * BLOCK;
            for (var i = 0u; i < min(BLOCK, length - b * BLOCK); i++) {
                y[place + i] = b * BLOCK + i;
            }
        }
        seen += select(vec2u(), vec2u(1u), vec2<bool>(s > cut.x, s == cut.x));
    }
    for (var i = blocks * BLOCK + lane; i < length; i += WG) {
        y[at + COUNT * BLOCK + (i - blocks * BLOCK)] = i;
    }
    workgroupBarrier();
}
