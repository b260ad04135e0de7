// y[q] = sum_j softmax_j(scale · query q · K[j]) K[j, :N]      a workgroup for Q queries and a run of the context, on matrix units
//
// All heads read the same latents, so a query is any head of any row: a block of queries is Q neighbours [t, h]. KEYS
// latents at a time are in workgroup memory, as keys and as values. For scores, subgroups divide the query tiles of S
// queries, the two halves of the keys, and the parts of the width; lanes then add the sums of the parts. For the sum
// over latents, subgroups divide the columns. Meanwhile, the next block is loaded. Compilers must not move these loads
// past a barrier, to their uses. So `keys` is declared as writable, although it is not written.
// needs attention/partition: cut_of; attention/softmax: exponentials, further, nothing_seen, sum_of
// needs lib/matrix_units/halves: halves; queries: part_of; query scale: query_scale; result: write
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> q: array<vec4f>;               // [T, H, N / 4]
@group(0) @binding(2) var<storage, read> r: array<vec4f>;               // [T, H, R / 4]
@group(0) @binding(5) var<storage, read_write> keys: array<vec4u>;    // eight float16 each: [pages, PAGE, WIDTH / 8]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4], or by run

const N4 = N / 4u;
const WIDTH4 = WIDTH / 4u;
const WIDTH8 = WIDTH / 8u;
const KEYS = 2u * S;
const KEYS4 = KEYS / 4u;
const SUBGROUPS = WG / SUBGROUP;
const QUERY_TILES = Q / S;                  // one or two query tiles
const WIDTH_PARTS = SUBGROUPS / QUERY_TILES / 2u;
const WIDTH_S = WIDTH / S / WIDTH_PARTS;    // fragments of a query per subgroup
const COLUMNS_S = (N / S + SUBGROUPS - 1u) / SUBGROUPS;     // fragments of a latent that a subgroup sums up
const STRIDE = max(WIDTH4, N4 + KEYS4) + 2u;                // distance of two latents in workgroup memory, in vec4s
const PER_LATENT = WG / KEYS;               // neighbouring lanes that copy a latent, so that whole lines of memory are read
const LOADS = (WIDTH8 + PER_LATENT - 1u) / PER_LATENT;      // groups of 8 dims that a lane copies per block
const BATCH = 9u;                           // loads in flight at the same time
const AHEAD = PREFETCH > 0u && LOADS <= BATCH;              // true if the loads of the next block overlap with computing
// True if these loads start before the current block is stored. This helps if the context is split into runs, as
// latents then come from memory, not from a cache.
const EARLY = RUNS > 1u;
const PER_QUERY = WG / Q;                   // lanes per query
const WHOLE_TABLE = MAX_PAGES <= WG;        // true if the lanes can hold all pages of a sequence, one each
const FOURS = (KEYS4 + PER_QUERY - 1u) / PER_QUERY;         // vec4s of a query's scores per lane

const_assert QUERY_TILES == 1u || QUERY_TILES == 2u;
const_assert S % 8u == 0u && N % S == 0u && WIDTH % (S * WIDTH_PARTS) == 0u;
const_assert SUBGROUPS == QUERY_TILES * 2u * WIDTH_PARTS && WG == PER_LATENT * KEYS;
const_assert WIDTH_S <= 18u && QUERY_TILES * COLUMNS_S <= 8u;
const_assert PAGE % KEYS == 0u && GRAIN % KEYS == 0u;
const_assert SUBGROUP % PER_QUERY == 0u;

struct Six {
    a: vec4f, b: vec4f, c: vec4f,
    d: vec4f, e: vec4f, f: vec4f,
}

struct Latents {
    a0: vec4u, a1: vec4u, a2: vec4u, a3: vec4u, a4: vec4u, a5: vec4u, a6: vec4u, a7: vec4u, a8: vec4u,
}

var<workgroup> kv_tile: array<vec4<f16>, KEYS * STRIDE>;        // first the queries, then latents; exponentials follow the first N dims
var<workgroup> sums_tile: array<f32, SUBGROUPS * S * S>;        // [subgroup, query, key] or [subgroup, query, column]
var<workgroup> fades: array<f32, Q>;
var<workgroup> tops: array<vec2f, Q>;       // the reference as an exponent of e, and the sum of exponentials
// Padded to 16 bytes, because fragments that follow must start at multiples of 16.
var<workgroup> extent: vec4u;               // the first position (a multiple of KEYS), the end, and the number of queries
var<workgroup> grown: vec4u;                // the end of the last block of keys at which a reference was replaced
var<workgroup> page_table: array<u32, (select(1u, MAX_PAGES, WHOLE_TABLE) + 3u) / 4u * 4u>;

var<private> block: Block;
var<private> subgroup: u32;
var<private> subgroup_lane: u32;

fn run(group: u32, lane: u32) {
    let own = part_of(group, lane);
    block = own.block;
    let number = own.run;
    let page = page_of(lane);
    if lane == 0u {
        let cut = cut_of(block.position, position_of(max(block.count, 1u) - 1u), number);
        let some = block.count > 0u && cut.start < cut.end;
        extent = select(vec4u(), vec4u(cut.start / KEYS * KEYS, cut.end, block.count, 0u), some);
    }
    if WHOLE_TABLE && lane < MAX_PAGES {
        page_table[lane] = page;
    }
    let here = workgroupUniformLoad(&extent);
    if here.x >= here.y {
        return;
    }
    subgroup = lane / SUBGROUP;
    subgroup_lane = lane % SUBGROUP;
    let query = lane / PER_QUERY;
    let position = position_of(query);
    let last = (here.y - 1u) / KEYS * KEYS;                     // the start of the last block
    var next = latents_from(start_of(here.x), rows_from(here.x, here.y), 0u, lane);
    var following = start_of(min(here.x + KEYS, last));
    let scale = take_query(query, lane % PER_QUERY);
// A subgroup's part of the scores: a query tile, half of the keys, and a part of the width.
    let half = subgroup / QUERY_TILES % 2u * S * STRIDE;
    let first = subgroup / QUERY_TILES / 2u * WIDTH_S * S / 4u;
    let at = subgroup % QUERY_TILES * S * STRIDE + first;
    workgroupBarrier();
    var q0 = coopLoadT<Left>(&kv_tile[at], STRIDE);
    #for i in 1..18: var q{i} = Left();
    #for i in 1..18: if WIDTH_S > {i}u { q{i} = coopLoadT<Left>(&kv_tile[at + {i}u * S / 4u], STRIDE); }
    // First the sums of query tile 0 with columns 0 to 3; then those of tile 1, or of tile 0 with columns 4 to 7.
    #for i in 0..8: var y{i} = Sums();
    var softmax = nothing_seen();
    var base = here.x;
    loop {
        // Processes blocks until a reference is replaced. Rescaling is outside this loop: inside, it would make compilers move sums between registers.
        loop {
            workgroupBarrier();
            if AHEAD && EARLY {
                let later = latents_from(following, rows_from(base + KEYS, here.y), 0u, lane);
                put_down(next, 0u, lane);
                next = later;
            } else if AHEAD {
                put_down(next, 0u, lane);
            } else {
                for (var batch = 0u; batch < LOADS; batch += BATCH) {
                    put_down(latents_from(start_of(base), rows_from(base, here.y), batch, lane), batch, lane);
                }
            }
            workgroupBarrier();
            if AHEAD && !EARLY {
                next = latents_from(following, rows_from(base + KEYS, here.y), 0u, lane);
            }
            following = start_of(min(base + 2u * KEYS, last));
            var s0 = Sums();    // the sum over even fragments of the width
            var s1 = Sums();
            let key = half + first;
            s0 = coopMultiplyAdd(q0, coopLoad<Right>(&kv_tile[key + 0u * S / 4u], STRIDE), s0);
            if WIDTH_S > 1u { s1 = coopMultiplyAdd(q1, coopLoad<Right>(&kv_tile[key + 1u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 2u { s0 = coopMultiplyAdd(q2, coopLoad<Right>(&kv_tile[key + 2u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 3u { s1 = coopMultiplyAdd(q3, coopLoad<Right>(&kv_tile[key + 3u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 4u { s0 = coopMultiplyAdd(q4, coopLoad<Right>(&kv_tile[key + 4u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 5u { s1 = coopMultiplyAdd(q5, coopLoad<Right>(&kv_tile[key + 5u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 6u { s0 = coopMultiplyAdd(q6, coopLoad<Right>(&kv_tile[key + 6u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 7u { s1 = coopMultiplyAdd(q7, coopLoad<Right>(&kv_tile[key + 7u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 8u { s0 = coopMultiplyAdd(q8, coopLoad<Right>(&kv_tile[key + 8u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 9u { s1 = coopMultiplyAdd(q9, coopLoad<Right>(&kv_tile[key + 9u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 10u { s0 = coopMultiplyAdd(q10, coopLoad<Right>(&kv_tile[key + 10u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 11u { s1 = coopMultiplyAdd(q11, coopLoad<Right>(&kv_tile[key + 11u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 12u { s0 = coopMultiplyAdd(q12, coopLoad<Right>(&kv_tile[key + 12u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 13u { s1 = coopMultiplyAdd(q13, coopLoad<Right>(&kv_tile[key + 13u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 14u { s0 = coopMultiplyAdd(q14, coopLoad<Right>(&kv_tile[key + 14u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 15u { s1 = coopMultiplyAdd(q15, coopLoad<Right>(&kv_tile[key + 15u * S / 4u], STRIDE), s1); }
            if WIDTH_S > 16u { s0 = coopMultiplyAdd(q16, coopLoad<Right>(&kv_tile[key + 16u * S / 4u], STRIDE), s0); }
            if WIDTH_S > 17u { s1 = coopMultiplyAdd(q17, coopLoad<Right>(&kv_tile[key + 17u * S / 4u], STRIDE), s1); }
            coopStoreT(s0 + s1, &sums_tile[subgroup * S * S], S);
            workgroupBarrier();
            var own: array<vec4f, FOURS>;
            var top = LOWEST;
            for (var n = 0u; n < FOURS; n++) {
                let four = n * PER_QUERY + lane % PER_QUERY;
                own[n] = vec4f(LOWEST);
                if four < KEYS4 {
                    own[n] = seen(scale * scores_at(query, four), position, base + 4u * four);
                }
                top = max(top, max(max(own[n].x, own[n].y), max(own[n].z, own[n].w)));
            }
            for (var far = 1u; far < PER_QUERY; far *= 2u) {
                top = max(top, subgroupShuffleXor(top, far));
            }
            let block_end = base + KEYS;
            softmax = further(softmax, top);
            if softmax.fade < 1.0 {
                grown = vec4u(block_end);
            }
            for (var n = 0u; n < FOURS; n++) {
                let four = n * PER_QUERY + lane % PER_QUERY;
                let rounded = exponentials(own[n], softmax.reference);
                if four < KEYS4 {
                    kv_tile[query * STRIDE + N4 + four] = rounded;
                    softmax.sum += sum_of(rounded);
                }
            }
            if lane % PER_QUERY == 0u {
                fades[query] = softmax.fade;
            }
            if workgroupUniformLoad(&grown).x == block_end && base > here.x {
                break;
            }
            add_latents(&y0, &y1, &y2, &y3, &y4, &y5, &y6, &y7);
            base += KEYS;
            if base >= here.y {
                break;
            }
        }
        if base >= here.y {
            break;
        }
        y0 = faded(y0, 0u);
        #for i in 1..4: if COLUMNS_S > {i}u { y{i} = faded(y{i}, 0u); }
        if QUERY_TILES > 1u || COLUMNS_S > 4u { y4 = faded(y4, QUERY_TILES - 1u); }
        if QUERY_TILES * COLUMNS_S > 5u || QUERY_TILES > 1u && COLUMNS_S > 1u { y5 = faded(y5, QUERY_TILES - 1u); }
        if QUERY_TILES * COLUMNS_S > 6u || QUERY_TILES > 1u && COLUMNS_S > 2u { y6 = faded(y6, QUERY_TILES - 1u); }
        if QUERY_TILES * COLUMNS_S > 7u || QUERY_TILES > 1u && COLUMNS_S > 3u { y7 = faded(y7, QUERY_TILES - 1u); }
        add_latents(&y0, &y1, &y2, &y3, &y4, &y5, &y6, &y7);
        base += KEYS;
        if base >= here.y {
            break;
        }
    }
    var sum = softmax.sum;
    for (var far = 1u; far < PER_QUERY; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    if lane % PER_QUERY == 0u {
        tops[query] = vec2f(softmax.reference / LOG2E, sum);
    }
    let place = subgroup * S * S;
    workgroupBarrier();
// Full query tiles are stored directly, partial ones through workgroup memory.
    if RUNS > 1u && here.z >= S {
        let out = run_place(0u, number);
        coopStoreT(y0, &y[out + column_of(0u)], RUNS * (N4 + 1u));
        #for i in 1..8: if COLUMNS_S > {i}u { coopStoreT(y{i}, &y[out + column_of({i}u)], RUNS * (N4 + 1u)); }
        if subgroup_lane < S && subgroup == 0u {
            y[run_place(subgroup_lane, number) + N4] = vec4f(tops[subgroup_lane], 0.0, 0.0);
        }
    } else {
        coopStoreT(y0, &sums_tile[place], S);
        put(number, 0u, 0u, lane);
        #for i in 1..8: if COLUMNS_S > {i}u { coopStoreT(y{i}, &sums_tile[place], S); put(number, 0u, {i}u, lane); }
    }
    if QUERY_TILES > 1u { coopStoreT(y4, &sums_tile[place], S); put(number, 1u, 0u, lane); }
    if QUERY_TILES > 1u && COLUMNS_S > 1u { coopStoreT(y5, &sums_tile[place], S); put(number, 1u, 1u, lane); }
    if QUERY_TILES > 1u && COLUMNS_S > 2u { coopStoreT(y6, &sums_tile[place], S); put(number, 1u, 2u, lane); }
    if QUERY_TILES > 1u && COLUMNS_S > 3u { coopStoreT(y7, &sums_tile[place], S); put(number, 1u, 3u, lane); }
}

// Adds exponentials times the subgroup's columns of latents.
fn add_latents(
    y0: ptr<function, Sums>, y1: ptr<function, Sums>, y2: ptr<function, Sums>, y3: ptr<function, Sums>,
    y4: ptr<function, Sums>, y5: ptr<function, Sums>, y6: ptr<function, Sums>, y7: ptr<function, Sums>,
) {
    for (var k = 0u; k < 2u; k++) {
        let key = k * S * STRIDE;
        let p0 = coopLoadT<Left>(&kv_tile[N4 + k * S / 4u], STRIDE);
        let p1 = coopLoadT<Left>(&kv_tile[(QUERY_TILES - 1u) * S * STRIDE + N4 + k * S / 4u], STRIDE);
        let v0 = coopLoadT<Right>(&kv_tile[key + column_of(0u)], STRIDE);
        *y0 = coopMultiplyAdd(p0, v0, *y0);
        if QUERY_TILES > 1u { *y4 = coopMultiplyAdd(p1, v0, *y4); }
        if COLUMNS_S > 1u {
            let v = coopLoadT<Right>(&kv_tile[key + column_of(1u)], STRIDE);
            *y1 = coopMultiplyAdd(p0, v, *y1);
            if QUERY_TILES > 1u { *y5 = coopMultiplyAdd(p1, v, *y5); }
        }
        if COLUMNS_S > 2u {
            let v = coopLoadT<Right>(&kv_tile[key + column_of(2u)], STRIDE);
            *y2 = coopMultiplyAdd(p0, v, *y2);
            if QUERY_TILES > 1u { *y6 = coopMultiplyAdd(p1, v, *y6); }
        }
        if COLUMNS_S > 3u {
            let v = coopLoadT<Right>(&kv_tile[key + column_of(3u)], STRIDE);
            *y3 = coopMultiplyAdd(p0, v, *y3);
            if QUERY_TILES > 1u { *y7 = coopMultiplyAdd(p1, v, *y7); }
        }
        #for i in 4..8: if COLUMNS_S > {i}u { *y{i} = coopMultiplyAdd(p0, coopLoadT<Right>(&kv_tile[key + column_of({i}u)], STRIDE), *y{i}); }
    }
}

// The start of a query's part of a run.
fn run_place(query: u32, number: u32) -> u32 { return ((block.first + query) * RUNS + number) * (N4 + 1u); }

// The position of the row of a query.
fn position_of(query: u32) -> u32 { return block.position + (block.first % H + query) / H; }

// Stores a query as float16, with several lanes, and returns the factor that makes its scores exponents of 2.
fn take_query(query: u32, part: u32) -> f32 {
    let number = block.first + min(query, block.count - 1u);
    let x = six_from(number, part);
    let y = six_from(number, part + 6u * PER_QUERY);
    let z = six_from(number, part + 12u * PER_QUERY);
    var most = max(max(1e-30, most_of(x)), max(most_of(y), most_of(z)));
    for (var c = part + 18u * PER_QUERY; c < WIDTH4; c += 6u * PER_QUERY) {
        most = max(most, most_of(six_from(number, c)));
    }
    for (var far = 1u; far < PER_QUERY; far *= 2u) {
        most = max(most, subgroupShuffleXor(most, far));
    }
    let exponent = frexp(most).exp;
    let smaller = ldexp(1.0, -exponent);
    put_six(query, part, x, smaller);
    put_six(query, part + 6u * PER_QUERY, y, smaller);
    put_six(query, part + 12u * PER_QUERY, z, smaller);
    for (var c = part + 18u * PER_QUERY; c < WIDTH4; c += 6u * PER_QUERY) {
        put_six(query, c, six_from(number, c), smaller);
    }
    return ldexp(query_scale(position_of(query)) * LOG2E, exponent);
}

// Six vec4s of a query, loaded at once.
fn six_from(number: u32, c: u32) -> Six {
    return Six(
        query4(number, c), query4(number, c + PER_QUERY), query4(number, c + 2u * PER_QUERY),
        query4(number, c + 3u * PER_QUERY), query4(number, c + 4u * PER_QUERY), query4(number, c + 5u * PER_QUERY),
    );
}

fn most_of(x: Six) -> f32 {
    let sizes = max(max(max(abs(x.a), abs(x.b)), max(abs(x.c), abs(x.d))), max(abs(x.e), abs(x.f)));
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

fn put_six(query: u32, c: u32, x: Six, smaller: f32) {
    let at = query * STRIDE + c;
    if c < WIDTH4 { kv_tile[at] = vec4<f16>(x.a * smaller); }
    if c + 1u * PER_QUERY < WIDTH4 { kv_tile[at + 1u * PER_QUERY] = vec4<f16>(x.b * smaller); }
    if c + 2u * PER_QUERY < WIDTH4 { kv_tile[at + 2u * PER_QUERY] = vec4<f16>(x.c * smaller); }
    if c + 3u * PER_QUERY < WIDTH4 { kv_tile[at + 3u * PER_QUERY] = vec4<f16>(x.d * smaller); }
    if c + 4u * PER_QUERY < WIDTH4 { kv_tile[at + 4u * PER_QUERY] = vec4<f16>(x.e * smaller); }
    if c + 5u * PER_QUERY < WIDTH4 { kv_tile[at + 5u * PER_QUERY] = vec4<f16>(x.f * smaller); }
}

// A vec4 of a query: first the part for latents, then the rotated part; zeros beyond.
fn query4(number: u32, column: u32) -> vec4f {
    let latent = q[number * N4 + min(column, N4 - 1u)];
    let rotated = r[number * (WIDTH4 - N4) + clamp(column, N4, WIDTH4 - 1u) - N4];
    return select(select(vec4f(), rotated, column < WIDTH4), latent, column < N4);
}

// The page of a lane, loaded together with the position. The branch keeps compilers from moving this load down to its use.
fn page_of(lane: u32) -> u32 {
    var page = 0u;
    if WHOLE_TABLE && step.bucket > 0u {
        page = pages[block.segment * MAX_PAGES + min(lane, MAX_PAGES - 1u)];
    }
    return page;
}

// The start of the latents of positions from `base` on.
fn start_of(base: u32) -> u32 {
    var page: u32;
    if WHOLE_TABLE {
        page = page_table[base / PAGE];
    } else {
        page = pages[block.segment * MAX_PAGES + base / PAGE];
    }
    return (page * PAGE + base % PAGE) * WIDTH8;
}

// The number of latents from `base` to the end, at least one.
fn rows_from(base: u32, end: u32) -> u32 { return select(1u, end - base, base < end); }

// Loads a lane's part of the KEYS latents from `start` on. Only `rows` of them are visible; later ones may be NaN, so the last
// visible one replaces them. Each group of eight is a variable: in a loop, each load would wait for the previous one.
// The values are not used yet, because a use would wait for the load, too.
fn latents_from(start: u32, rows: u32, batch: u32, lane: u32) -> Latents {
    let row = start + min(lane / PER_LATENT, rows - 1u) * WIDTH8;
    return Latents(
        latent_at(batch + 0u, row, lane), latent_at(batch + 1u, row, lane), latent_at(batch + 2u, row, lane),
        latent_at(batch + 3u, row, lane), latent_at(batch + 4u, row, lane), latent_at(batch + 5u, row, lane),
        latent_at(batch + 6u, row, lane), latent_at(batch + 7u, row, lane), latent_at(batch + 8u, row, lane),
    );
}

fn latent_at(n: u32, row: u32, lane: u32) -> vec4u {
    if n >= LOADS {
        return vec4u();
    }
    let e = n * PER_LATENT + lane % PER_LATENT;
    return keys[row + select(min(e, WIDTH8 - 1u), e, WIDTH8 % PER_LATENT == 0u)];
}

// Stores a lane's copies in workgroup memory.
fn put_down(x: Latents, batch: u32, lane: u32) {
    put8(batch + 0u, x.a0, lane);
    put8(batch + 1u, x.a1, lane);
    put8(batch + 2u, x.a2, lane);
    put8(batch + 3u, x.a3, lane);
    put8(batch + 4u, x.a4, lane);
    put8(batch + 5u, x.a5, lane);
    put8(batch + 6u, x.a6, lane);
    put8(batch + 7u, x.a7, lane);
    put8(batch + 8u, x.a8, lane);
}

fn put8(n: u32, x: vec4u, lane: u32) {
    let e = n * PER_LATENT + lane % PER_LATENT;
    if n < LOADS && (WIDTH8 % PER_LATENT == 0u || e < WIDTH8) {
        let to = lane / PER_LATENT * STRIDE + 2u * e;
        kv_tile[to] = halves(x.xy);
        kv_tile[to + 1u] = halves(x.zw);
    }
}

// Four scores of a query, summed over the parts of the width.
fn scores_at(query: u32, four: u32) -> vec4f {
    var sum = scores_of(0u, query, four);
    if WIDTH_PARTS > 1u { sum += scores_of(1u, query, four); }
    if WIDTH_PARTS > 2u { sum += scores_of(2u, query, four) + scores_of(3u, query, four); }
    return sum;
}

fn scores_of(part: u32, query: u32, four: u32) -> vec4f {
    let fragment = (2u * part + four / (S / 4u)) * QUERY_TILES + query / S;
    let at = (fragment * S + query % S) * S + four % (S / 4u) * 4u;
    return vec4f(sums_tile[at], sums_tile[at + 1u], sums_tile[at + 2u], sums_tile[at + 3u]);
}

// Scores of keys from position `first` on; masked for keys that the row must not read.
fn seen(scores: vec4f, position: u32, first: u32) -> vec4f {
    return select(vec4f(LOWEST), scores, vec4u(first) + vec4u(0u, 1u, 2u, 3u) <= vec4u(position));
}

// The start of column fragment i of a subgroup; beyond its last, a fragment of another subgroup.
fn column_of(i: u32) -> u32 { return min(subgroup * COLUMNS_S + i, N / S - 1u) * S / 4u; }

// Rescales the sums of a query tile to new references.
fn faded(sums: Sums, tile: u32) -> Sums {
    let place = subgroup * S * S;
    coopStoreT(sums, &sums_tile[place], S);
    workgroupBarrier();
    for (var e = subgroup_lane; e < S * S; e += SUBGROUP) {
        sums_tile[place + e] *= fades[tile * S + e / S];
    }
    workgroupBarrier();
    return coopLoadT<Sums>(&sums_tile[place], S);
}

// Copies column fragment i of each subgroup from workgroup memory to y.
fn put(number: u32, tile: u32, i: u32, lane: u32) {
    workgroupBarrier();
    for (var e = lane; e < SUBGROUPS * S * S / 4u; e += WG) {
        let of_subgroup = e / (S * S / 4u);
        let query = tile * S + e / (S / 4u) % S;
        let column = of_subgroup * COLUMNS_S + i;
        if query < block.count && column < N / S {
            let x = vec4f(sums_tile[4u * e], sums_tile[4u * e + 1u], sums_tile[4u * e + 2u], sums_tile[4u * e + 3u]);
            write(block.first + query, number, column * S / 4u + e % (S / 4u), x, tops[query]);
        }
    }
    workgroupBarrier();
}
