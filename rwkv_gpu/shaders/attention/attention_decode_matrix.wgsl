// y[t, h] = sum_j softmax_j(q[t, h] · K[j]) V[j]      in decode, on matrix units: a workgroup for row t, SHARED heads h of one KV head, a run of the context
//
// The heads are rows of fragments, so that each key is read once for all of them; rows beyond the heads are computed and
// ignored. A workgroup is one subgroup. It processes KEYS positions at a time in workgroup memory, with a running softmax, and
// prefetches the next ones into registers. Compilers must not move these loads down to their use. So keys and values
// are bound as writable, although they are never written: compilers do not move loads from writable buffers.
// needs attention/partition: cut_of; attention/softmax: exponentials, further, nothing_seen, sum_of; logit: logits_of
// needs result: write; runs of rows: run_at
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> q: array<vec4f>;               // [T, H, N / 4], rotated
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)
@group(0) @binding(5) var<storage, read_write> keys: array<vec4<f16>>;     // [pages, PAGE, KV, N / 4]
@group(0) @binding(6) var<storage, read_write> values: array<vec4<f16>>;   // [pages, PAGE, KV, N / 4]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4], or by run

const N4 = N / 4u;
const DIMS_S = N / S;                       // fragments of a head
const KEYS = KEY_TILES * S;
const SHARES = H / SHARED;                  // workgroups for all heads
const PARTS = SUBGROUP / QUERIES;           // lanes that share a query
const FOURS = KEYS / 4u / PARTS;            // vec4s of a query's scores per lane
const LOADS = KEYS * N4 / SUBGROUP;         // vec4s that a lane loads per block
const STRIDE = N4 + 2u;                     // distance of two keys in workgroup memory, in vec4s
const SCORES_STRIDE = KEYS / 4u + 1u;       // distance of two queries in `scores`
const WEIGHTS_STRIDE = KEYS / 4u + 2u;

const_assert WG == SUBGROUP;                // so workgroup barriers suffice: naga's subgroupBarrier() orders no workgroup memory
const_assert N % S == 0u && DIMS_S <= 8u;
const_assert SHARED <= QUERIES && QUERIES <= S && SUBGROUP % QUERIES == 0u;
const_assert KEYS % (4u * PARTS) == 0u && N4 % PARTS == 0u;
const_assert KEYS * N4 % SUBGROUP == 0u && LOADS <= 16u;
const_assert PAGE % KEYS == 0u && GRAIN % KEYS == 0u;

alias Scores = vec4f;

// The keys or values of a block that a lane loads. Each is a variable: in a loop, each load would wait for the previous one.
struct Rows {
    a0: vec4<f16>, a1: vec4<f16>, a2: vec4<f16>, a3: vec4<f16>,
    a4: vec4<f16>, a5: vec4<f16>, a6: vec4<f16>, a7: vec4<f16>,
    a8: vec4<f16>, a9: vec4<f16>, a10: vec4<f16>, a11: vec4<f16>,
    a12: vec4<f16>, a13: vec4<f16>, a14: vec4<f16>, a15: vec4<f16>,
}

var<workgroup> kv_tile: array<vec4<f16>, KEYS * STRIDE>;        // first queries, then keys and values in turn
var<workgroup> scores: array<vec4f, S * SCORES_STRIDE>;         // [query, key], or [query, dim]
var<workgroup> weights: array<vec4<f16>, S * WEIGHTS_STRIDE>;   // [query, key]
var<workgroup> fades: array<f32, QUERIES>;
var<workgroup> tops: array<vec2f, QUERIES>;     // the reference as a power of 2, and the sum of exponentials
var<workgroup> extent: vec4u;               // the first position, a multiple of KEYS; the end; the first that is seen

var<private> row: u32;
var<private> kv_head: u32;
var<private> line: u32;         // the lane

fn run(group: u32, lane: u32) {
    let share = group % SHARES;             // neighbours read neighbouring memory
    let place = run_at(group / SHARES, lane);
    row = place.x;
    let number = place.y;
    if lane == 0u {
        extent = vec4u();
        if row < step.rows {
            let position = places[row].x;
            let cut = cut_of(position, position, number);
            extent = vec4u(cut.start / KEYS * KEYS, cut.end, cut.start, 0u);
        }
    }
    let here = workgroupUniformLoad(&extent);
    if here.z >= here.y {
        return;
    }
    kv_head = share * SHARED / (H / KV);
    line = lane;
    let query = line / PARTS;
    let last = (here.y - 1u) / KEYS * KEYS;     // the start of the last block
    let first = start_of(here.x);
    var key_rows = keys_from(first);
    var value_rows = values_from(first);
    var following = start_of(min(here.x + KEYS, last));
    let position = places[row].x;
    let head = share * SHARED + min(query, SHARED - 1u);
    let scale = take_query(query, row * H + head);
    workgroupBarrier();
    let q0 = coopLoadT<Left>(&kv_tile[0], STRIDE);
    #for i in 1..8: var q{i} = Left();
    #for i in 1..8: if DIMS_S > {i}u { q{i} = coopLoadT<Left>(&kv_tile[{i}u * S / 4u], STRIDE); }
    #for i in 0..8: var y{i} = Sums();
    var softmax = nothing_seen();
    for (var base = here.x; base < here.y; base += KEYS) {
        let more = base + KEYS < here.y;
        workgroupBarrier();
        put_down(key_rows);
        workgroupBarrier();
        if more {
            key_rows = keys_from(following);
        }
        for (var k = 0u; k < KEY_TILES; k++) {
            let at = k * S * STRIDE;
            var s = coopMultiplyAdd(q0, coopLoad<Right>(&kv_tile[at], STRIDE), Sums());
            #for i in 1..8: if DIMS_S > {i}u { s = coopMultiplyAdd(q{i}, coopLoad<Right>(&kv_tile[at + {i}u * S / 4u], STRIDE), s); }
            coopStoreT(s, &scores[k * S / 4u], SCORES_STRIDE);
        }
        workgroupBarrier();
        if base < here.z || base + KEYS > here.y {
            value_rows = within(value_rows, base, here);
        }
        put_down(value_rows);
        // The lanes of a query compute its exponentials.
        var found: array<vec4f, FOURS>;
        var top = LOWEST;
        for (var n = 0u; n < FOURS; n++) {
            let four = n * PARTS + line % PARTS;
            let at = vec4u(base + 4u * four) + vec4u(0u, 1u, 2u, 3u);
            let score = logits_of(scale * scores[query * SCORES_STRIDE + four], vec4f(f32(head)), vec4f(position - at));
            found[n] = select(vec4f(LOWEST), score, (at >= vec4u(here.z)) & (at < vec4u(here.y)));
            top = max(top, max(max(found[n].x, found[n].y), max(found[n].z, found[n].w)));
        }
        for (var far = 1u; far < PARTS; far *= 2u) {
            top = max(top, subgroupShuffleXor(top, far));
        }
        softmax = further(softmax, top);
        for (var n = 0u; n < FOURS; n++) {
            let rounded = exponentials(found[n], softmax.reference);
            weights[query * WEIGHTS_STRIDE + n * PARTS + line % PARTS] = rounded;
            softmax.sum += sum_of(rounded);
        }
        if more {
            value_rows = values_from(following);
            following = start_of(min(base + 2u * KEYS, last));
        }
        if subgroupAny(softmax.fade < 1.0) && base > here.x {
            fades[query] = softmax.fade;
            y0 = faded(y0);
            #for i in 1..8: if DIMS_S > {i}u { y{i} = faded(y{i}); }
        }
        workgroupBarrier();
        for (var k = 0u; k < KEY_TILES; k++) {
            let w = coopLoadT<Left>(&weights[k * S / 4u], WEIGHTS_STRIDE);
            let at = k * S * STRIDE;
            y0 = coopMultiplyAdd(w, coopLoadT<Right>(&kv_tile[at], STRIDE), y0);
            #for i in 1..8: if DIMS_S > {i}u { y{i} = coopMultiplyAdd(w, coopLoadT<Right>(&kv_tile[at + {i}u * S / 4u], STRIDE), y{i}); }
        }
    }
    var sum = softmax.sum;
    for (var far = 1u; far < PARTS; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    if line % PARTS == 0u {
        tops[query] = vec2f(softmax.reference, sum);
    }
    let heads = row * H + share * SHARED;
    coopStoreT(y0, &scores[0], SCORES_STRIDE);
    put_out(heads, number, 0u, lane);
    #for i in 1..8: if DIMS_S > {i}u { coopStoreT(y{i}, &scores[0], SCORES_STRIDE); put_out(heads, number, {i}u, lane); }
}

// Stores a query as float16, with several lanes, and returns the factor that makes its scores exponents of 2.
fn take_query(query: u32, head: u32) -> f32 {
    var own: array<vec4f, N4 / PARTS>;
    for (var n = 0u; n < N4 / PARTS; n++) {
        own[n] = q[head * N4 + n * PARTS + line % PARTS];
    }
    var most = 1e-30;
    for (var n = 0u; n < N4 / PARTS; n++) {
        let sizes = abs(own[n]);
        most = max(most, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
    }
    for (var far = 1u; far < PARTS; far *= 2u) {
        most = max(most, subgroupShuffleXor(most, far));
    }
    let exponent = frexp(most).exp;
    let smaller = ldexp(1.0, -exponent);
    for (var n = 0u; n < N4 / PARTS; n++) {
        kv_tile[query * STRIDE + n * PARTS + line % PARTS] = vec4<f16>(own[n] * smaller);
    }
    return ldexp(LOG2E, exponent);
}

// The index of position `base` among the keys of all heads.
fn start_of(base: u32) -> u32 { return (pages[row * MAX_PAGES + base / PAGE] * PAGE + base % PAGE) * KV + kv_head; }

fn keys_from(start: u32) -> Rows {
    return Rows(
        key_at(start, 0u), key_at(start, 1u), key_at(start, 2u), key_at(start, 3u),
        key_at(start, 4u), key_at(start, 5u), key_at(start, 6u), key_at(start, 7u),
        key_at(start, 8u), key_at(start, 9u), key_at(start, 10u), key_at(start, 11u),
        key_at(start, 12u), key_at(start, 13u), key_at(start, 14u), key_at(start, 15u),
    );
}

fn values_from(start: u32) -> Rows {
    return Rows(
        value_at(start, 0u), value_at(start, 1u), value_at(start, 2u), value_at(start, 3u),
        value_at(start, 4u), value_at(start, 5u), value_at(start, 6u), value_at(start, 7u),
        value_at(start, 8u), value_at(start, 9u), value_at(start, 10u), value_at(start, 11u),
        value_at(start, 12u), value_at(start, 13u), value_at(start, 14u), value_at(start, 15u),
    );
}

fn key_at(start: u32, n: u32) -> vec4<f16> {
    if n >= LOADS {
        return vec4<f16>();
    }
    let e = n * SUBGROUP + line;
    return keys[(start + e / N4 * KV) * N4 + e % N4];
}

fn value_at(start: u32, n: u32) -> vec4<f16> {
    if n >= LOADS {
        return vec4<f16>();
    }
    let e = n * SUBGROUP + line;
    return values[(start + e / N4 * KV) * N4 + e % N4];
}

fn put_down(x: Rows) {
    put(x.a0, 0u); put(x.a1, 1u); put(x.a2, 2u); put(x.a3, 3u);
    put(x.a4, 4u); put(x.a5, 5u); put(x.a6, 6u); put(x.a7, 7u);
    put(x.a8, 8u); put(x.a9, 9u); put(x.a10, 10u); put(x.a11, 11u);
    put(x.a12, 12u); put(x.a13, 13u); put(x.a14, 14u); put(x.a15, 15u);
}

fn put(x: vec4<f16>, n: u32) {
    let e = n * SUBGROUP + line;
    if n < LOADS {
        kv_tile[e / N4 * STRIDE + e % N4] = x;
    }
}

// Replaces masked values of the block by zeros: a page may contain NaN there, which a weight of 0 would not remove.
fn within(x: Rows, own: u32, here: vec4u) -> Rows {
    return Rows(
        seen(x.a0, 0u, own, here), seen(x.a1, 1u, own, here), seen(x.a2, 2u, own, here), seen(x.a3, 3u, own, here),
        seen(x.a4, 4u, own, here), seen(x.a5, 5u, own, here), seen(x.a6, 6u, own, here), seen(x.a7, 7u, own, here),
        seen(x.a8, 8u, own, here), seen(x.a9, 9u, own, here), seen(x.a10, 10u, own, here), seen(x.a11, 11u, own, here),
        seen(x.a12, 12u, own, here), seen(x.a13, 13u, own, here), seen(x.a14, 14u, own, here), seen(x.a15, 15u, own, here),
    );
}

fn seen(x: vec4<f16>, n: u32, own: u32, here: vec4u) -> vec4<f16> {
    let position = own + (n * SUBGROUP + line) / N4;
    if position >= here.z && position < here.y {
        return x;
    }
    return vec4<f16>();
}

// The sums [query, dim], multiplied by the factor of each query's new reference.
fn faded(sums: Sums) -> Sums {
    workgroupBarrier();
    coopStoreT(sums, &scores[0], SCORES_STRIDE);
    workgroupBarrier();
    for (var e = line; e < QUERIES * S / 4u; e += SUBGROUP) {
        scores[e / (S / 4u) * SCORES_STRIDE + e % (S / 4u)] *= fades[e / (S / 4u)];
    }
    workgroupBarrier();
    return coopLoadT<Sums>(&scores[0], SCORES_STRIDE);
}

// Copies fragment i of each head from workgroup memory to y.
fn put_out(first: u32, number: u32, i: u32, lane: u32) {
    workgroupBarrier();
    for (var e = lane; e < SHARED * S / 4u; e += WG) {
        let head = e / (S / 4u);
        let summed = tops[head];
        write(first + head, number, i * S / 4u + e % (S / 4u), scores[head * SCORES_STRIDE + e % (S / 4u)], vec2f(summed.x / LOG2E, summed.y));
    }
    workgroupBarrier();
}
