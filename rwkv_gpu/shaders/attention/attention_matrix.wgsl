// y[t, h] = sum_j softmax_j(q[t, h] · K[j]) V[j]      a workgroup for ROWS rows t, SHARED heads h of one KV head, on matrix units
//
// A subgroup has a query tile: S rows of a head. For KEYS positions at a time, it computes scores by fragments, exponentials by
// lanes, and the sum over V by fragments. If there would be few workgroups, each covers one of RUNS runs of the context, and
// writes its partial sum, followed by the maximum and the sum of exponentials.
// needs attention/blocks: block_of; attention/partition: cut_of
// needs attention/softmax: exponentials, further, nothing_seen, sum_of; logit: logits_of; reach: first_seen, last_seen
// needs sink: sink_of
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> q: array<vec4f>;               // [T, H, N / 4]
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(5) var<storage, read> keys: array<vec4<f16>>;        // [pages, PAGE, KV, N / 4]
@group(0) @binding(6) var<storage, read> values: array<vec4<f16>>;      // [pages, PAGE, KV, N / 4]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<f32>;           // [T, H, N], of runs [T, H, RUNS, N + 4]

const N4 = N / 4u;
const DIMS_S = (N + S - 1u) / S;            // fragments of a head; zeros fill the last one
const M4 = DIMS_S * S / 4u;
const KEYS = 4u * S;
const TILES = WG / SUBGROUP;                // query tiles: ROWS / S for each of SHARED heads
const GROUPS = H / SHARED;
const SHARE = H / KV;
const PARTS = SUBGROUP / S;                 // lanes that share a query
const STRIDE = M4 + 2u;                     // distance of two keys in workgroup memory, in vec4s
const P_STRIDE = KEYS / 4u + 2u;
const LOADS = KEYS * M4 / WG;               // vec4s that a lane copies per block

const WIDTH = select(N, N + 4u, RUNS > 1u);     // floats of a head in y

const_assert N % 8u == 0u && DIMS_S <= 8u;
const_assert PAGE % KEYS == 0u;
const_assert TILES * S == SHARED * ROWS;
const_assert SUBGROUP % S == 0u;
const_assert KEYS * M4 % WG == 0u && TILES * S <= KEYS;

alias Scores = f32;

var<workgroup> kv_tile: array<vec4<f16>, KEYS * STRIDE>;            // first the queries, then keys and values in turn
var<workgroup> scores: array<f32, TILES * KEYS * S>;                // [tile, key, query]
var<workgroup> weights: array<vec4<f16>, TILES * S * P_STRIDE>;     // [tile, query, key / 4]
var<workgroup> fades: array<f32, TILES * S>;
// Padded to 16 bytes, because fragments that follow must start at multiples of 16.
var<workgroup> extent: vec4u;               // the first position, a multiple of KEYS, and the end
var<workgroup> grown: vec4u;                // the end of the last block of keys at which a reference was replaced

var<private> block: Block;
var<private> number: u32;       // the number of the run
var<private> tile: u32;
var<private> tile_lane: u32;

fn run(group: u32, lane: u32) {
    block = block_of(group / RUNS / GROUPS);
    number = group % RUNS;
    let heads = group / RUNS % GROUPS;
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
    let row = tile / SHARED * S + query;    // the row in the block
    let own_head = heads * SHARED + tile % SHARED;
    if here.x >= here.y {
        leave(row, own_head, LOWEST, 0.0);
        return;
    }
    let scale = take_queries(row, own_head);
    let at = tile * S * STRIDE;
    #for i in 0..8: var q{i} = Left();
    workgroupBarrier();
    q0 = coopLoadT<Left>(&kv_tile[at + 0u * S / 4u], STRIDE);
    #for i in 1..8: if DIMS_S > {i}u { q{i} = coopLoadT<Left>(&kv_tile[at + {i}u * S / 4u], STRIDE); }
    #for i in 0..8: var y{i} = Sums();
    let position = block.position + row;
    let seen = vec2u(first_seen(position), min(last_seen(block.segment, position), here.y - 1u));
    var softmax = nothing_seen();
    for (var base = here.x; base < here.y; base += KEYS) {
        let start = ((pages[block.segment * MAX_PAGES + base / PAGE] * PAGE + base % PAGE) * KV + head) * N4;
        workgroupBarrier();
        for (var n = 0u; n < LOADS; n++) {
            let e = n * WG + lane;
            let key = keys[start + e / M4 * KV * N4 + e % M4];
            kv_tile[e / M4 * STRIDE + e % M4] = select(key, vec4<f16>(), M4 > N4 && e % M4 >= N4);
        }
        workgroupBarrier();
        for (var k = 0u; k < 4u; k++) {
            var s = Sums();
            let from_key = k * S * STRIDE;
            s = coopMultiplyAdd(q0, coopLoad<Right>(&kv_tile[from_key + 0u * S / 4u], STRIDE), s);
            #for i in 1..8: if DIMS_S > {i}u { s = coopMultiplyAdd(q{i}, coopLoad<Right>(&kv_tile[from_key + {i}u * S / 4u], STRIDE), s); }
            coopStore(s, &scores[(tile * KEYS + k * S) * S], S);
        }
        workgroupBarrier();
        for (var n = 0u; n < LOADS; n++) {
            let e = n * WG + lane;
            let value = values[start + e / M4 * KV * N4 + e % M4];
            let none = base + e / M4 >= here.y || (M4 > N4 && e % M4 >= N4);
            kv_tile[e / M4 * STRIDE + e % M4] = select(value, vec4<f16>(), none);
        }
        // The lanes of a query compute its exponentials.
        var top = LOWEST;
        for (var j = tile_lane / S; j < KEYS; j += PARTS) {
            top = max(top, score_at(j, query, base, seen, position, own_head, scale));
        }
        for (var far = S; far < SUBGROUP; far *= 2u) {
            top = max(top, subgroupShuffleXor(top, far));
        }
        let block_end = base + KEYS;
        softmax = further(softmax, top);
        if softmax.fade < 1.0 {
            grown = vec4u(block_end);
        }
        for (var j = tile_lane / S; j < KEYS / 4u; j += PARTS) {
            var own = vec4f();
            for (var n = 0u; n < 4u; n++) {
                own[n] = score_at(4u * j + n, query, base, seen, position, own_head, scale);
            }
            let rounded = exponentials(own, softmax.reference);
            weights[(tile * S + query) * P_STRIDE + j] = rounded;
            softmax.sum += sum_of(rounded);
        }
        fades[tile * S + query] = softmax.fade;
        if workgroupUniformLoad(&grown).x == block_end && base > here.x {
            y0 = faded(y0);
            #for i in 1..8: if DIMS_S > {i}u { y{i} = faded(y{i}); }
        }
        for (var k = 0u; k < 4u; k++) {
            let w = coopLoadT<Left>(&weights[tile * S * P_STRIDE + k * S / 4u], P_STRIDE);
            let from_key = k * S * STRIDE;
            y0 = coopMultiplyAdd(w, coopLoadT<Right>(&kv_tile[from_key + 0u * S / 4u], STRIDE), y0);
            #for i in 1..8: if DIMS_S > {i}u { y{i} = coopMultiplyAdd(w, coopLoadT<Right>(&kv_tile[from_key + {i}u * S / 4u], STRIDE), y{i}); }
        }
    }
    var sum = softmax.sum;
    for (var far = S; far < SUBGROUP; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    fades[tile * S + query] = select(1.0 / (sum + sink_of(own_head, softmax.reference / LOG2E)), 1.0, RUNS > 1u);
    leave(row, own_head, softmax.reference / LOG2E, sum);
    coopStore(y0, &scores[tile * KEYS * S], S);
    write(own_head, 0u);
    #for i in 1..8: if DIMS_S > {i}u { coopStore(y{i}, &scores[tile * KEYS * S], S); write(own_head, {i}u); }
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

// The score of key j of a block as an exponent of two; masked unless the key is within the first and last one `seen`.
fn score_at(j: u32, query: u32, base: u32, seen: vec2u, position: u32, head: u32, scale: f32) -> f32 {
    let score = scale * scores[(tile * KEYS + j) * S + query];
    let logit = logits_of(score, f32(head), f32(abs(i32(position - (base + j)))));
    return select(LOWEST, logit, base + j >= seen.x && base + j <= seen.y);
}

// Sums [query, dim] relative to a new reference.
fn faded(sums: Sums) -> Sums {
    let place = tile * KEYS * S;
    coopStore(sums, &scores[place], S);     // [dim, query]
    workgroupBarrier();
    for (var e = tile_lane; e < S * S; e += SUBGROUP) {
        scores[place + e] *= fades[tile * S + e % S];
    }
    workgroupBarrier();
    return coopLoad<Sums>(&scores[place], S);
}

// Copies fragment i of a head from workgroup memory to y.
fn write(head: u32, i: u32) {
    workgroupBarrier();
    let place = tile * KEYS * S;
    for (var e = tile_lane; e < S * S; e += SUBGROUP) {
        let query = e / S;
        let row = tile / SHARED * S + query;
        if row < block.count && (M4 == N4 || i * S + e % S < N) {
            y[place_of(row, head) + i * S + e % S] = scores[place + e % S * S + query] * fades[tile * S + query];
        }
    }
    workgroupBarrier();
}

// The start of a query's result in y.
fn place_of(row: u32, head: u32) -> u32 { return (((block.first + row) * H + head) * RUNS + number) * WIDTH; }

// Writes the maximum and the sum, by which this run is combined with others; nothing if there is only one run.
fn leave(row: u32, head: u32, top: f32, sum: f32) {
    if RUNS > 1u && tile_lane < S && row < block.count {
        y[place_of(row, head) + N] = top;
        y[place_of(row, head) + N + 1u] = sum;
    }
}
