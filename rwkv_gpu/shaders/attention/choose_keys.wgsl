// y[t] = the COUNT positions with the largest scores, ascending; score = sum_h weights[t, h] · relu(r[t, h] · K[j])
//
// A workgroup has every GROUPS-th row. A row with at most COUNT positions gets all of them. For other rows, a radix
// search (one byte of the scores at a time) finds the smallest chosen score, and how many positions have it.
// needs latent read: latent8; pages of rows: segment_of
@group(0) @binding(1) var<storage, read> r: array<vec4f>;               // [T, H, N / 4]
@group(0) @binding(2) var<storage, read> weights: array<f32>;           // [T, H]
@group(0) @binding(3) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages
@group(0) @binding(4) var<storage, read_write> y: array<u32>;           // [T, COUNT]
@group(0) @binding(5) var<storage, read> keys: array<vec4u>;            // [pages, PAGE, N]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> scores: array<u32>;      // [GROUPS, MAX_PAGES · PAGE], in the order of the scores

const N4 = N / 4u;
const DIGITS = 256u;

var<workgroup> counts: array<atomic<u32>, DIGITS>;  // the number of scores with each digit
var<workgroup> cut: vec2u;                          // the digits of the smallest chosen score, and how many positions have that score
var<workgroup> before: array<vec2u, WG>;            // for each lane, the number of its positions above that score, and of those equal to it

fn run(group: u32, lane: u32) {
    for (var t = group; t < step.rows; t += GROUPS) {
        let length = places[t].x + 1u;
        for (var i = min(length, COUNT) + lane; i < COUNT; i += WG) {
            y[t * COUNT + i] = NO_KEY;
        }
        if length <= COUNT {
            for (var i = lane; i < length; i += WG) {
                y[t * COUNT + i] = i;
            }
        } else {
            let first = group * MAX_PAGES * PAGE;
            score(t, length, first, lane);
            search(length, first, lane);
            list(t, length, first, lane);
        }
    }
}

fn score(t: u32, length: u32, first: u32, lane: u32) {
    for (var j = lane; j < length; j += WG) {
        let row = pages[segment_of(t) * MAX_PAGES + j / PAGE] * PAGE + j % PAGE;
        var key: array<vec4f, N4>;
        for (var i = 0u; i < N4 / 2u; i++) {
            let both = latent8(row * (N4 / 2u) + i);
            key[2u * i] = both.low;
            key[2u * i + 1u] = both.high;
        }
        var sum = 0.0;
        for (var h = 0u; h < H; h++) {
            var product = 0.0;
            for (var i = 0u; i < N4; i++) {
                product += dot(r[(t * H + h) * N4 + i], key[i]);
            }
            sum += weights[t * H + h] * max(product, 0.0);
        }
        scores[first + j] = ordered(sum);
    }
    storageBarrier();
    workgroupBarrier();
}

// An integer that orders like x; -0 counts as 0.
fn ordered(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return bits ^ select(0x80000000u, 0xffffffffu, bits >= 0x80000000u);
}

fn search(length: u32, first: u32, lane: u32) {
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
        for (var j = lane; j < length; j += WG) {
            let s = scores[first + j];
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

// Writes the chosen positions in order. A lane has neighbouring positions; its place follows from the counts of earlier
// lanes.
fn list(t: u32, length: u32, first: u32, lane: u32) {
    let each = (length + WG - 1u) / WG;
    let start = min(lane * each, length);
    let end = min(start + each, length);
    var own = vec2u();
    for (var j = start; j < end; j++) {
        own += select(vec2u(), vec2u(1u), vec2<bool>(scores[first + j] > cut.x, scores[first + j] == cut.x));
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
    for (var j = start; j < end; j++) {
        let s = scores[first + j];
        if s > cut.x || (s == cut.x && seen.y < cut.y) {
            y[t * COUNT + seen.x + min(seen.y, cut.y)] = j;
        }
        seen += select(vec2u(), vec2u(1u), vec2<bool>(s > cut.x, s == cut.x));
    }
    workgroupBarrier();
}
