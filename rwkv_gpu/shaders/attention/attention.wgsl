// y[t, h] = sum_j softmax_j(q[t, h] · K[j]) V[j]      one workgroup for ROWS rows t, SHARED heads h of one KV head, a run of the context
//
// A workgroup processes KEYS positions at a time. One lane computes the scores of a key, some lanes the softmax of
// 4 queries, and one lane the sum over V of a vec4 of a head. The running maximum of a query rescales earlier sums.
// needs attention/partition: cut_of; attention/soften: soften; keys: key_row, tile_of; logit: logits_of
// needs queries: block_of, prepare
// needs reach: first_seen, last_seen; read: key8, value4; result: write; rotation: rotated
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4], or by run

const N4 = N / 4u;
const N8 = N / 8u;
const GROUPS = H / SHARED;                  // workgroups for all heads
const SHARE = H / KV;                       // heads of a KV head
const Q4 = (ROWS * SHARED + 3u) / 4u;       // groups of four queries; unused queries stay zero
const Q = 4u * Q4;
const COLUMNS = (N4 + WG - 1u) / WG;        // vec4s of a head per lane
const HEAD_LANES = min(N4, WG);                   // lanes of a head
const PARTS = WG / HEAD_LANES;                    // lanes that share a column; each has every PARTS-th key
const SPREAD = WG / Q4;                     // lanes that share 4 queries

const_assert N % 8u == 0u;
const_assert Q4 <= WG;
const_assert PAGE % KEYS == 0u;
const_assert GRAIN % PAGE == 0u;

alias Scores = vec4f;

var<workgroup> queries: array<vec4f, Q * N4>;       // queries; at the end the sums of the parts
var<workgroup> tops: array<vec4f, WG>;
var<workgroup> totals: array<vec4f, WG>;

fn run(group: u32, lane: u32) {
    let heads = group / RUNS % GROUPS;
    let head = heads * SHARED / SHARE;
    let block = block_of(group / (GROUPS * RUNS), head);
    let number = group % RUNS;
    if block.count == 0u {
        return;
    }
    let cut = cut_of(block.position, last_seen(block.segment, block.position + block.count - 1u), number);
    let start = cut.start / KEYS * KEYS;
    let end = cut.end;
    if start >= end {
        return;
    }
    prepare(block, heads, head, end == block.position + block.count, lane);
    if lane < Q4 {
        most[lane] = vec4f(LOWEST);
        sums[lane] = vec4f();
    }
    workgroupBarrier();
    rotate(lane);
    var acc: array<vec4f, Q * COLUMNS>;
    for (var i = 0u; i < Q * COLUMNS; i++) {
        acc[i] = vec4f();
    }
    for (var base = start; base < end; base += KEYS) {
        let count = min(KEYS, end - base);
        let tile = tile_of(block, head, base);
        score(block, heads * SHARED, base, end, tile, lane);
        workgroupBarrier();
        soften(count, lane);
        workgroupBarrier();
        gather(&acc, count, tile, lane);
        workgroupBarrier();
    }
    for (var part = 0u; part < PARTS; part++) {
        if lane / HEAD_LANES == part {
            collect(&acc, part, lane % HEAD_LANES);
        }
        workgroupBarrier();
    }
    rotate(lane);   // back to the original basis
    for (var i = lane; i < block.count * SHARED * N4; i += WG) {
        let query = i / N4;
        let top = most[query / 4u][query % 4u];
        let sum = sums[query / 4u][query % 4u];
        let t = block.first + query / SHARED;
        write(t * H + heads * SHARED + query % SHARED, number, i % N4, queries[i], vec2f(top, sum));
    }
}

// Rotates queries as keys are stored, and rotates sums of values back.
fn rotate(lane: u32) {
    if !ROTATED {
        return;
    }
    for (var block = lane; block < Q * N / 32u; block += WG) {
        var x: array<vec4f, 8>;
        for (var n = 0u; n < 8u; n++) {
            x[n] = queries[8u * block + n];
        }
        x = rotated(x);
        for (var n = 0u; n < 8u; n++) {
            queries[8u * block + n] = x[n];
        }
    }
    workgroupBarrier();
}

// Computes the scores of KEYS positions from `base` to `end`. Each lane takes every WG-th key. Queries begin at
// head `head`.
fn score(block: Block, head: u32, base: u32, end: u32, tile: Tile, lane: u32) {
    let count = min(KEYS, end - base);
    for (var j = lane; j < count; j += WG) {
        var s: array<vec4f, Q4>;
        for (var i = 0u; i < Q4; i++) {
            s[i] = vec4f();
        }
        let key = key_row(tile, j);
        let last = select(N8, min(N8, count * N8), ROLLED == 1u);     // always N8, but compilers do not know that, and so do not unroll the loop
        for (var c = 0u; c < last; c++) {
            let k = key8(key + c);
            for (var i = 0u; i < Q4; i++) {
                let at = i * 4u * N4 + 2u * c;
                s[i] += vec4f(
                    dot(queries[at], k.low) + dot(queries[at + 1u], k.high),
                    dot(queries[at + N4], k.low) + dot(queries[at + N4 + 1u], k.high),
                    dot(queries[at + 2u * N4], k.low) + dot(queries[at + 2u * N4 + 1u], k.high),
                    dot(queries[at + 3u * N4], k.low) + dot(queries[at + 3u * N4 + 1u], k.high),
                );
            }
        }
        for (var i = 0u; i < Q4; i++) {
            let four = vec4u(0u, 1u, 2u, 3u) + 4u * i;
            let query = block.position + four / SHARED;     // the position of the query
            let distances = vec4f(vec4i(query - vec4u(base + j)));   // negative for later keys
            let logits = logits_of(s[i], vec4f(head + four % SHARED), distances);
            weights[j * Q4 + i] = select(vec4f(LOWEST), logits, seen_by(query, block.segment, base + j));
        }
    }
}

// True for each of four queries, at these positions of a sequence, that sees a key.
fn seen_by(query: vec4u, segment: u32, key: u32) -> vec4<bool> {
    let first = vec4u(first_seen(query.x), first_seen(query.y), first_seen(query.z), first_seen(query.w));
    let last = vec4u(
        last_seen(segment, query.x), last_seen(segment, query.y), last_seen(segment, query.z), last_seen(segment, query.w),
    );
    return (vec4u(key) >= first) & (vec4u(key) <= last);
}

fn put_top(lane: u32, top: vec4f) { tops[lane] = top; }
fn top_at(lane: u32) -> vec4f { return tops[lane]; }
fn put_total(lane: u32, total: vec4f) { totals[lane] = total; }
fn total_at(lane: u32) -> vec4f { return totals[lane]; }

// Adds V, weighted by the exponentials, to a lane's part of y.
fn gather(acc: ptr<function, array<vec4f, Q * COLUMNS>>, count: u32, tile: Tile, lane: u32) {
    for (var i = 0u; i < Q4; i++) {
        let f = fade[i];
        for (var c = 0u; c < COLUMNS; c++) {
            let at = c * Q + 4u * i;
            (*acc)[at] *= f.x;
            (*acc)[at + 1u] *= f.y;
            (*acc)[at + 2u] *= f.z;
            (*acc)[at + 3u] *= f.w;
        }
    }
    if lane / HEAD_LANES >= PARTS {
        return;
    }
    for (var j = lane / HEAD_LANES; j < count; j += PARTS) {
        let row = key_row(tile, j);
        for (var c = 0u; c < COLUMNS; c++) {
            let v = value4(row * 2u + min(lane % HEAD_LANES + c * WG, N4 - 1u));
            for (var i = 0u; i < Q4; i++) {
                let w = weights[j * Q4 + i];
                let at = c * Q + 4u * i;
                (*acc)[at] += w.x * v;
                (*acc)[at + 1u] += w.y * v;
                (*acc)[at + 2u] += w.z * v;
                (*acc)[at + 3u] += w.w * v;
            }
        }
    }
}

// Adds a lane's sum to the sums of earlier parts.
fn collect(acc: ptr<function, array<vec4f, Q * COLUMNS>>, part: u32, side: u32) {
    for (var c = 0u; c < COLUMNS; c++) {
        let column = side + c * WG;
        for (var i = 0u; i < Q; i++) {
            if column < N4 {
                var sum = (*acc)[c * Q + i];
                if part > 0u {
                    sum += queries[i * N4 + column];
                }
                queries[i * N4 + column] = sum;
            }
        }
    }
}
