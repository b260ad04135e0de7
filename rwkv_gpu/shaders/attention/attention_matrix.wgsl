// y[t, h] = sum_j softmax_j(q[t, h] · K[j]) V[j]      a workgroup for ROWS rows t, SHARED heads h of one KV head, on matrix units
//
// A subgroup has a query tile: S rows of a head. The workgroup copies KEYS keys and values at a time. Each subgroup then goes
// through them, AT_ONCE at a time, without waiting for the others: scores by fragments, exponentials by lanes, and the sum over V
// by fragments. Meanwhile, registers receive the next keys and values. Compilers must not move these loads past a barrier, to
// their uses, so `keys` and `values` are declared as writable, although they are not written. If there would be few workgroups,
// each covers one of RUNS runs of the context, and writes its partial sum, followed by the maximum and the sum of exponentials.
// A long head has PIECES workgroups. Each computes all scores, and as many dimensions of the result as registers hold.
// needs attention/blocks: block_of; attention/partition: cut_of; lib/matrix_units/halves: halves; meeting: meet, any_of
// needs attention/softmax: further, nothing_seen; logit: logits_of; reach: first_seen, last_seen; sink: sink_of
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> q: array<vec4f>;               // [T, H, N / 4]
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(5) var<storage, read_write> keys: array<vec4u>;      // [pages, PAGE, KV, N / 8], float16
@group(0) @binding(6) var<storage, read_write> values: array<vec4u>;    // [pages, PAGE, KV, N / 8], float16
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4], of runs [T, H, RUNS, N / 4 + 1]

const N4 = N / 4u;
const N8 = N / 8u;
const DIMS_S = (N + S - 1u) / S;            // fragments of a head; zeros fill the last one
const OWN_S = (DIMS_S + PIECES - 1u) / PIECES;  // fragments of the result in a workgroup
const M4 = DIMS_S * S / 4u;
const M8 = M4 / 2u;
const V8 = OWN_S * S / 8u;                  // vec4us of a value in a workgroup
const S4 = S / 4u;
const TILES = WG / SUBGROUP;                // query tiles: ROWS / S for each of SHARED heads
const GROUPS = H / SHARED;
const SHARE = H / KV;
const PARTS = SUBGROUP / S;                 // lanes that share a query
const LOADS = (KEYS * M8 + WG - 1u) / WG;   // vec4us of keys that a lane copies at a time
const V_LOADS = (KEYS * V8 + WG - 1u) / WG; // the same of values
const AT_ONCE = 2u * S;
const FOURS = AT_ONCE / 4u / PARTS;         // vec4s of a query's scores per lane
const STRIDE = M4 + 2u;                     // distance of two keys in workgroup memory, in vec4s
const V_STRIDE = 2u * V8 + 2u;              // the same of two values
const VALUES = KEYS * STRIDE;               // the place of values in workgroup memory
const SCORES = AT_ONCE / 4u + 1u;           // of the scores of two queries
const WEIGHTS = AT_ONCE / 4u + 2u;          // of their exponentials
const WIDTH = select(N4, N4 + 1u, RUNS > 1u);   // vec4s of a head in y
const MASKED = 3.0 * LOWEST;                // so that its exponential is 0 relative to any reference

const_assert N % 8u == 0u && DIMS_S <= 16u && OWN_S <= 8u;
const_assert PAGE % KEYS == 0u && KEYS % AT_ONCE == 0u;
const_assert TILES * S == SHARED * ROWS;
const_assert SUBGROUP % S == 0u;

alias Scores = vec4f;

var<workgroup> kv_tile: array<vec4<f16>, max(TILES * S * STRIDE, VALUES + KEYS * V_STRIDE)>;    // first the queries, then keys, followed by values
var<workgroup> scores: array<vec4f, TILES * S * SCORES>;            // [tile, query, key / 4]
var<workgroup> weights: array<vec4<f16>, TILES * S * WEIGHTS>;      // [tile, query, key / 4]
var<workgroup> fades: array<f32, TILES * S>;
// Padded to 16 bytes, because fragments that follow must start at multiples of 16.
var<workgroup> extent: vec4u;               // the first position, a multiple of KEYS, and the end

var<private> block: Block;
var<private> number: u32;       // the number of the run
var<private> piece: u32;        // the number of the piece of the result
var<private> tile: u32;
var<private> tile_lane: u32;
var<private> of_keys: array<vec4u, LOADS>;      // a lane's share of the keys and values of a block
var<private> of_values: array<vec4u, V_LOADS>;

fn run(group: u32, lane: u32) {
    piece = group % PIECES;
    let of_head = group / PIECES;
    block = block_of(of_head / RUNS / GROUPS);
    number = of_head % RUNS;
    let heads = of_head / RUNS % GROUPS;
    let head = heads * SHARED / SHARE;      // the head of keys
    if lane == 0u {
        let last = last_seen(block.segment, block.position + max(block.count, 1u) - 1u);
        let cut = cut_of(block.position, last, number);
        extent = vec4u(cut.start / KEYS * KEYS, select(0u, cut.end, block.count > 0u), 0u, 0u);
    }
    let here = workgroupUniformLoad(&extent);
    tile = lane / SUBGROUP;
    tile_lane = lane % SUBGROUP;
    let query = tile_lane % S;
    let part = tile_lane / S;
    let row = tile / SHARED * S + query;    // the row in the block
    let own_head = heads * SHARED + tile % SHARED;
    if here.x >= here.y {
        leave(row, own_head, LOWEST, 0.0);
        return;
    }
    let scale = take_queries(row, own_head);
    let at = tile * S * STRIDE;
    #for i in 0..16: var q{i} = Left();
    meet();
    q0 = coopLoadT<Left>(&kv_tile[at], STRIDE);
    #for i in 1..16: if DIMS_S > {i}u { q{i} = coopLoadT<Left>(&kv_tile[at + {i}u * S4], STRIDE); }
    #for i in 0..8: var y{i} = Sums();
    let position = block.position + row;
    let seen = vec2u(first_seen(position), min(last_seen(block.segment, position), here.y - 1u));
    let own_scores = (tile * S + query) * SCORES + part;
    let own_weights = (tile * S + query) * WEIGHTS + part;
    var softmax = nothing_seen();
    var start = start_of(min(here.x + KEYS, here.y - 1u), head);
    load(start_of(here.x, head), lane);
    for (var base = here.x; base < here.y; base += KEYS) {
        workgroupBarrier();
        put(lane, here.y - base);
        workgroupBarrier();
        load(start, lane);
        start = start_of(min(base + 2u * KEYS, here.y - 1u), head);
        for (var from_key = 0u; from_key < KEYS; from_key += AT_ONCE) {
            for (var k = 0u; k < 2u; k++) {
                let key = (from_key + k * S) * STRIDE;
                var s = coopMultiplyAdd(q0, coopLoad<Right>(&kv_tile[key], STRIDE), Sums());
                #for i in 1..16: if DIMS_S > {i}u { s = coopMultiplyAdd(q{i}, coopLoad<Right>(&kv_tile[key + {i}u * S4], STRIDE), s); }
                coopStoreT(s, &scores[tile * S * SCORES + k * S4], SCORES);
            }
            meet();
            // The lanes of a query compute its exponentials.
            let first = base + from_key;
            var p: array<vec4f, FOURS>;
            for (var n = 0u; n < FOURS; n++) {
                let distances = vec4f(abs(vec4i(vec4u(position) - keys_at(first, n, part))));
                p[n] = logits_of(scale * scores[own_scores + n * PARTS], vec4f(f32(own_head)), distances);
            }
            if first < seen.x || first + AT_ONCE > seen.y + 1u {
                for (var n = 0u; n < FOURS; n++) {
                    let key = keys_at(first, n, part);
                    p[n] = select(vec4f(MASKED), p[n], (key >= vec4u(seen.x)) & (key <= vec4u(seen.y)));
                }
            }
            var tops = p[0];
            for (var n = 1u; n < FOURS; n++) {
                tops = max(tops, p[n]);
            }
            var top = max(max(tops.x, tops.y), max(tops.z, tops.w));
            for (var far = S; far < SUBGROUP; far *= 2u) {
                top = max(top, subgroupShuffleXor(top, far));
            }
            softmax = further(softmax, top);
            for (var n = 0u; n < FOURS; n++) {
                p[n] = exp2(p[n] - softmax.reference);
                weights[own_weights + n * PARTS] = vec4<f16>(p[n]);
                softmax.sum += dot(p[n], vec4f(1.0));
            }
            fades[tile * S + query] = softmax.fade;
            meet();
            if any_of(softmax.fade < 1.0, first + 1u) && first > here.x {
                y0 = faded(y0);
                #for i in 1..8: if OWN_S > {i}u { y{i} = faded(y{i}); }
            }
            for (var k = 0u; k < 2u; k++) {
                let w = coopLoadT<Left>(&weights[tile * S * WEIGHTS + k * S4], WEIGHTS);
                let value = VALUES + (from_key + k * S) * V_STRIDE;
                y0 = coopMultiplyAdd(w, coopLoadT<Right>(&kv_tile[value], V_STRIDE), y0);
                #for i in 1..8: if OWN_S > {i}u { y{i} = coopMultiplyAdd(w, coopLoadT<Right>(&kv_tile[value + {i}u * S4], V_STRIDE), y{i}); }
            }
        }
    }
    var sum = softmax.sum;
    for (var far = S; far < SUBGROUP; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    fades[tile * S + query] = select(1.0 / (sum + sink_of(own_head, softmax.reference / LOG2E)), 1.0, RUNS > 1u);
    leave(row, own_head, softmax.reference / LOG2E, sum);
    coopStoreT(y0, &scores[tile * S * SCORES], SCORES);
    write(own_head, 0u);
    #for i in 1..8: if OWN_S > {i}u { coopStoreT(y{i}, &scores[tile * S * SCORES], SCORES); write(own_head, {i}u); }
}

// The start of a head's keys, and of its values, from a block of KEYS positions on.
fn start_of(position: u32, head: u32) -> u32 {
    let first = position / KEYS * KEYS;
    return ((pages[block.segment * MAX_PAGES + first / PAGE] * PAGE + first % PAGE) * KV + head) * N8;
}

// Loads a lane's share of the keys and values of a block.
fn load(start: u32, lane: u32) {
    for (var n = 0u; n < LOADS; n++) {
        let e = min(n * WG + lane, KEYS * M8 - 1u);
        of_keys[n] = keys[start + e / M8 * KV * N8 + e % M8];
    }
    for (var n = 0u; n < V_LOADS; n++) {
        let e = min(n * WG + lane, KEYS * V8 - 1u);
        of_values[n] = values[start + e / V8 * KV * N8 + piece * V8 + e % V8];
    }
}

// Copies it to workgroup memory; zeros from position `count` of the block on, and beyond the end of a head.
fn put(lane: u32, count: u32) {
    for (var n = 0u; n < LOADS; n++) {
        let e = n * WG + lane;
        let there = e / M8 < count && (M8 == N8 || e % M8 < N8);
        if KEYS * M8 % WG == 0u || e < KEYS * M8 {
            put_down(e / M8 * STRIDE + e % M8 * 2u, select(vec4u(), of_keys[n], there));
        }
    }
    for (var n = 0u; n < V_LOADS; n++) {
        let e = n * WG + lane;
        let there = e / V8 < count && (PIECES * V8 == N8 || piece * V8 + e % V8 < N8);
        if KEYS * V8 % WG == 0u || e < KEYS * V8 {
            put_down(VALUES + e / V8 * V_STRIDE + e % V8 * 2u, select(vec4u(), of_values[n], there));
        }
    }
}

fn put_down(to: u32, eight: vec4u) {
    kv_tile[to] = halves(eight.xy);
    kv_tile[to + 1u] = halves(eight.zw);
}

// The positions of the n-th four scores of a lane.
fn keys_at(first: u32, n: u32, part: u32) -> vec4u {
    return vec4u(first + 4u * (n * PARTS + part)) + vec4u(0u, 1u, 2u, 3u);
}

// Stores the queries of a tile as float16, and returns the factor that turns their scores from powers of e into powers of 2.
fn take_queries(row: u32, head: u32) -> f32 {
    let t = block.first + min(row, block.count - 1u);
    let start = (t * H + head) * N4;
    var most = 1e-30;
    for (var c = tile_lane / S; c < N4; c += PARTS) {
        let sizes = abs(q[start + c]);
        most = max(most, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
    }
    for (var far = S; far < SUBGROUP; far *= 2u) {
        most = max(most, subgroupShuffleXor(most, far));
    }
    let exponent = frexp(most).exp;
    for (var c = tile_lane / S; c < N4; c += PARTS) {
        kv_tile[(tile * S + tile_lane % S) * STRIDE + c] = vec4<f16>(q[start + c] * ldexp(1.0, -exponent));
    }
    for (var c = N4 + tile_lane / S; c < M4; c += PARTS) {
        kv_tile[(tile * S + tile_lane % S) * STRIDE + c] = vec4<f16>();
    }
    return ldexp(LOG2E, exponent);
}

// Sums [query, dim] relative to a new reference.
fn faded(sums: Sums) -> Sums {
    coopStoreT(sums, &scores[tile * S * SCORES], SCORES);
    meet();
    for (var e = tile_lane; e < S * S4; e += SUBGROUP) {
        scores[(tile * S + e / S4) * SCORES + e % S4] *= fades[tile * S + e / S4];
    }
    meet();
    let scaled = coopLoadT<Sums>(&scores[tile * S * SCORES], SCORES);
    meet();
    return scaled;
}

// Copies fragment i of the piece from workgroup memory to y.
fn write(head: u32, i: u32) {
    meet();
    for (var e = tile_lane; e < S * S4; e += SUBGROUP) {
        let row = tile / SHARED * S + e / S4;
        let dim4 = (piece * OWN_S + i) * S4 + e % S4;
        if row < block.count && dim4 < N4 {
            y[place_of(row, head) + dim4] = scores[(tile * S + e / S4) * SCORES + e % S4] * fades[tile * S + e / S4];
        }
    }
    meet();
}

// The start of a query's result in y.
fn place_of(row: u32, head: u32) -> u32 { return (((block.first + row) * H + head) * RUNS + number) * WIDTH; }

// Writes the maximum and the sum, by which this run is combined with others; nothing if there is only one run.
fn leave(row: u32, head: u32, top: f32, sum: f32) {
    if RUNS > 1u && piece == 0u && tile_lane < S && row < block.count {
        y[place_of(row, head) + N4] = vec4f(top, sum, 0.0, 0.0);
    }
}
