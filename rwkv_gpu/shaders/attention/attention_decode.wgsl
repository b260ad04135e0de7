// y[t, h] = sum_j softmax_j(q[t, h] · K[j]) V[j]      in decode: a workgroup for row t, SHARED heads h of one KV head, a run of the context
//
// LANES_PER_KEY neighbouring lanes form a group, which reads a key together. A group loads PREFETCH keys at a time, and keeps a
// running softmax. Groups do not wait for each other: a group loads its next keys while it computes. Their results are
// merged once, at the end. The key and value of the row itself are not read back: the first group of the last run
// starts with them.
//
// The lanes of a group are divided into SIDES sides. A lane of side s loads key j ^ s as its number j. So one shuffle
// for each number sums the scores of key s in the lanes of side s, and only one side computes each exponential.
// needs attention/heads: value_at; attention/partition: cut_of, runs_of; attention/turns: turn_of
// needs head norm: norm_start, root_of, weight_after, weight_before; lib/step: apart; logit: logits_of
// needs pack: Each, Pack, heads_of, numbers_from, outer, scaled, shuffled, store_sums; query scale: query_scale
// needs raw: eight_of, half_of, own8, raw_key, raw_value, rotate_own, scale_of, write_own; result: finish, write
// needs rope: is_second, pair_of, partner_of; rotation: rotated; runs of rows: run_at; scores: query_of, score_of
// needs sum: group_sum; value norm: value_scale
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4], or by run

const N4 = N / 4u;
const N8 = N / 8u;
const SHARES = H / SHARED;                      // workgroups for all heads
const CHUNKS = N8 / LANES_PER_KEY;                       // groups of 8 dims of a head per lane
const RAWS = PREFETCH * CHUNKS;
const GROUPS = WG / LANES_PER_KEY;
const SIDES = min(PREFETCH, LANES_PER_KEY);
const SIDE_LANES = LANES_PER_KEY / SIDES;
const SIDE_KEYS = PREFETCH / SIDES;
const BLOCK = GROUPS * PREFETCH;                // positions that a workgroup processes at a time
const PAGED = PAGE % BLOCK == 0u;               // true if a block lies in one page
const AHEAD = CHUNKS == 1u && RAW_WORDS <= 4u;   // true if registers also hold the next block
const PACKS = (SHARED + PACK - 1u) / PACK;      // packs of heads; unused heads stay zero
const QUERIES = PACKS * PACK;
const COLUMNS = 2u * CHUNKS;                    // vec4s of a head per lane
const SUBGROUPS = WG / SUBGROUP;
const TURNED = select(SHARED, SHARED + 1u, OWN_KEYS);   // heads that are rotated: the queries, then the key
const HEADS = select(SHARED, SHARED + 2u, OWN_KEYS);    // these heads and the value
const ITEMS = TURNED * N4;                      // vec4s of the rotated heads
const ROUNDS = (HEADS * N4 + WG - 1u) / WG;
const WHOLE_TABLE = MAX_PAGES <= WG;            // true if the lanes can hold all pages of the row, one each
const AT_ONCE = 16u;                            // runs that a lane reads concurrently when it combines them
const LOWEST = -1e38;                           // the maximum before any score
const HIDDEN = -2e38;                           // the score of a masked position: negligible even compared with LOWEST

const_assert N8 % LANES_PER_KEY == 0u;
const_assert SUBGROUP % LANES_PER_KEY == 0u;
const_assert WG % SUBGROUP == 0u;
const_assert countOneBits(PREFETCH) == 1u && PREFETCH <= 8u;

alias Scores = Each;
alias Weights = array<Each, SIDE_KEYS * PACKS>;   // the weights of the keys of one side
alias Sums = array<Pack, PACKS * COLUMNS>;

var<workgroup> raw_heads: array<vec4f, ITEMS>;
var<workgroup> squares: array<f32, ITEMS / WIDTH>;                      // sums of squares of WIDTH vec4s
var<workgroup> whole_squares: array<vec2f, select(1u, WG, WHOLE)>;      // by lane: partial sums of squares of all q and of all k
var<workgroup> run_pages: array<u32, select(RUN_PAGES, MAX_PAGES, WHOLE_TABLE)>;
var<workgroup> turned: array<vec4f, QUERIES * N4>;
var<workgroup> own: array<Half, 2u * N4>;                               // the row's key and value, as pages store them
var<workgroup> sums: array<vec4f, SUBGROUPS * QUERIES * N4>;
var<workgroup> tops: array<f32, SUBGROUPS * QUERIES>;
var<workgroup> totals: array<f32, SUBGROUPS * QUERIES>;

var<private> run_count: u32;    // the number of runs of the row

// The task of a lane.
struct Place {
    row: u32,
    head: u32,      // the head of K and V
    first: u32,     // the first position of the run
    end: u32,       // the end of the positions in pages
    group: u32,
    column: u32,    // the first 8 dims of the lane; the next are LANES_PER_KEY further on
    side: u32,
}

fn run(group: u32, lane: u32) {
    let share = group % SHARES;             // neighbours read neighbouring memory
    let place = run_at(group / SHARES, lane);
    let t = place.x;
    let number = place.y;
    if t >= step.rows {
        return;
    }
    let head = share * SHARED / (H / KV);
    let asked = asked_of(t, share, head, lane);
    let position = places[t].x;
    let cut = cut_of(position, position, number);
    if cut.start >= cut.end {
        return;
    }
    run_count = runs_of(position);
    let last = OWN_KEYS && cut.end > position;
    let at = Place(t, head, cut.start, min(cut.end, select(position + 1u, position, OWN_KEYS)), lane / LANES_PER_KEY, lane % LANES_PER_KEY, lane % LANES_PER_KEY / SIDE_LANES);
    stage(at, asked, lane);
    workgroupBarrier();
    var keys_raw: array<Raw, RAWS>;
    var values_raw: array<Raw, RAWS>;
    let begin = select(at.first, at.first / BLOCK * BLOCK, PAGED);
    if begin < at.end {
        keys_raw = keys_from(at, begin);
        values_raw = values_from(at, begin);
    }
    turn_heads(position, share * SHARED, at.head, lane);
    workgroupBarrier();
    if ROTATED {
        for (var block = lane; block < QUERIES * N / 32u; block += WG) {
            var x: array<vec4f, 8>;
            for (var n = 0u; n < 8u; n++) {
                x[n] = turned[8u * block + n];
            }
            x = rotated(x);
            for (var n = 0u; n < 8u; n++) {
                turned[8u * block + n] = x[n];
            }
        }
        if OWN_KEYS {
            for (var block = lane; block < N / 16u; block += WG) {
                rotate_own(block);
            }
        }
        workgroupBarrier();
    }
    var q: array<Pack, PACKS * COLUMNS>;
    var acc: Sums;
    var top: array<Each, PACKS>;
    var total: array<Each, PACKS>;
    for (var p = 0u; p < PACKS; p++) {
        for (var c = 0u; c < COLUMNS; c++) {
            q[p * COLUMNS + c] = heads_of(p * PACK * N4 + vec4_of(at, c));
            acc[p * COLUMNS + c] = Pack();
        }
        top[p] = Each(LOWEST);
        total[p] = Each(0.0);
    }
    if last {
        let mine = select(0.0, 1.0, at.group == 0u);
        for (var p = 0u; p < PACKS; p++) {
            var score = Each(0.0);
            for (var c = 0u; c < CHUNKS; c++) {
                let i = vec4_of(at, 2u * c);
                let own_key = own8(i);
                let own_value = own8(N4 + i);
                let key = eight_of(own_key);
                let value = eight_of(own_value);
                let n = p * COLUMNS + 2u * c;
                let weight = Each(mine * scale_of(own_value, i / 2u));
                score += (key.low * q[n] + key.high * q[n + 1u]) * scale_of(own_key, i / 2u);
                acc[n] = outer(acc[n], value.low, weight);
                acc[n + 1u] = outer(acc[n + 1u], value.high, weight);
            }
            let logits = logits_of(over_lanes(score, 1u, LANES_PER_KEY), numbers_from(share * SHARED + p * PACK), Each(0.0));
            top[p] = select(Each(LOWEST), logits, at.group == 0u);
            total[p] = Each(select(0.0, mine, at.side == 0u));
        }
        if share * SHARED % (H / KV) == 0u {    // only the first workgroup with this head of K and V does this
            for (var c = lane; c < N8; c += WG) {
                write_own(places[t].y * KV + at.head, c);
            }
        }
    }
    var queries: array<Query, PACKS * CHUNKS>;
    for (var p = 0u; p < PACKS; p++) {
        for (var c = 0u; c < CHUNKS; c++) {
            let n = p * COLUMNS + 2u * c;
            queries[p * CHUNKS + c] = query_of(q[n], q[n + 1u]);
        }
    }
    for (var base = begin; base < at.end; base += BLOCK) {
        let more = base + BLOCK < at.end;
        var keys_next = keys_raw;
        var values_next = values_raw;
        if AHEAD && (more || LAST_AGAIN) {
            let next = select(base, base + BLOCK, more);
            keys_next = keys_from(at, next);
            values_next = values_from(at, next);
        }
        var parts: array<Each, PREFETCH * PACKS>;   // partial scores of a block
        for (var a = 0u; a < PREFETCH; a++) {
            for (var p = 0u; p < PACKS; p++) {
                parts[a * PACKS + p] = Each(0.0);
            }
            for (var c = 0u; c < CHUNKS; c++) {
                for (var p = 0u; p < PACKS; p++) {
                    parts[a * PACKS + p] += score_of(keys_raw[a * CHUNKS + c], queries[p * CHUNKS + c], at.column + c * LANES_PER_KEY);
                }
            }
        }
        if !AHEAD && more {
            keys_next = keys_from(at, base + BLOCK);
        }
        var weights: Weights;
        for (var p = 0u; p < PACKS; p++) {
            var most = top[p];
            for (var k = 0u; k < SIDE_KEYS; k++) {
                var score = parts[k * SIDES * PACKS + p];
                for (var r = 1u; r < SIDES; r++) {
                    score += subgroupShuffleXor(parts[(k * SIDES + r) * PACKS + p], r * SIDE_LANES);
                }
                let key = base + (k * SIDES + at.side) * GROUPS + at.group;     // the position of the key
                score = logits_of(over_lanes(score, 1u, SIDE_LANES), numbers_from(share * SHARED + p * PACK), Each(f32(position - key)));
                weights[k * PACKS + p] = select(Each(HIDDEN), score, key >= at.first && key < at.end);
                most = max(most, weights[k * PACKS + p]);
            }
            most = most_of_lanes(most, SIDE_LANES, LANES_PER_KEY);
            if any(most > top[p]) {
                let fade = exp(top[p] - most);
                top[p] = most;
                total[p] *= fade;
                for (var c = 0u; c < COLUMNS; c++) {
                    acc[p * COLUMNS + c] = scaled(acc[p * COLUMNS + c], fade);
                }
            }
            for (var k = 0u; k < SIDE_KEYS; k++) {
                weights[k * PACKS + p] = exp(weights[k * PACKS + p] - most);
                total[p] += weights[k * PACKS + p];
            }
        }
        // Unrolled by hand: drivers may not unroll a loop, and then need twice the instructions to select values.
        #for i in 0..8: add_value({i}u, at, &values_raw, &weights, &acc);
        if !AHEAD && more {
            values_next = values_from(at, base + BLOCK);
        }
        keys_raw = keys_next;
        values_raw = values_next;
    }
    for (var p = 0u; p < PACKS; p++) {
        let most = most_of_lanes(top[p], LANES_PER_KEY, SUBGROUP);
        let fade = exp(top[p] - most);
        let sum = over_lanes(total[p] * fade, SIDE_LANES, SUBGROUP);
        let first = (lane / SUBGROUP * PACKS + p) * PACK;
        if lane % SUBGROUP == 0u {
            for (var j = 0u; j < PACK; j++) {
                tops[first + j] = most[j];
                totals[first + j] = sum[j];
            }
        }
        for (var c = 0u; c < COLUMNS; c++) {
            let met = over_groups(scaled(acc[p * COLUMNS + c], fade));
            if lane % SUBGROUP < LANES_PER_KEY {
                store_sums(met, first * N4 + vec4_of(at, c));
            }
        }
    }
    workgroupBarrier();
    if ROTATED {    // back to the original basis
        for (var block = lane; block < SUBGROUPS * QUERIES * N / 32u; block += WG) {
            var x: array<vec4f, 8>;
            for (var n = 0u; n < 8u; n++) {
                x[n] = sums[8u * block + n];
            }
            x = rotated(x);
            for (var n = 0u; n < 8u; n++) {
                sums[8u * block + n] = x[n];
            }
        }
        workgroupBarrier();
    }
    for (var i = lane; i < SHARED * N4; i += WG) {
        join(t * H + share * SHARED, number, i / N4, i % N4);
    }
    finish(t * H + share * SHARED, lane);
}

// Value a of a block, times the weight of its key.
fn add_value(a: u32, at: Place, values_raw: ptr<function, array<Raw, RAWS>>, weights: ptr<function, Weights>, acc: ptr<function, Sums>) {
    if a >= PREFETCH {
        return;
    }
    for (var p = 0u; p < PACKS; p++) {
        var weight = (*weights)[a / SIDES * PACKS + p];
        if a % SIDES > 0u {
            weight = subgroupShuffleXor(weight, a % SIDES * SIDE_LANES);
        }
        for (var c = 0u; c < CHUNKS; c++) {
            let raw = (*values_raw)[a * CHUNKS + c];
            let value = eight_of(raw);
            let each = weight * scale_of(raw, at.column + c * LANES_PER_KEY);
            let n = p * COLUMNS + 2u * c;
            (*acc)[n] = outer((*acc)[n], value.low, each);
            (*acc)[n + 1u] = outer((*acc)[n + 1u], value.high, each);
        }
    }
}

// A lane's part of the row's heads before rotation, with their factors, and the lane's part of the pages.
struct Asked {
    heads: array<vec4f, ROUNDS>,
    weights: array<vec4f, ROUNDS>,
    page: u32,
}

// Loads values that do not depend on the position, while the position is being loaded. The branch keeps compilers from moving
// these loads down to their uses.
fn asked_of(row: u32, share: u32, kv_head: u32, lane: u32) -> Asked {
    var asked: Asked;
    if step.bucket > 0u {
        for (var r = 0u; r < ROUNDS; r++) {
            let i = r * WG + lane;
            let head = min(i / N4, HEADS - 1u);
            let query = (row * H + share * SHARED + head) * N4;
            let key = apart(K_AT) + (row * KV + kv_head) * N4;
            asked.heads[r] = qkv[select(select(query, key, head == SHARED), value_at(row, kv_head), head > SHARED) + i % N4];
            let d = norm_start(select(share * SHARED + head, H + kv_head, head >= SHARED)) + i % N4 * 4u;
            asked.weights[r] = vec4f(weight_before(d), weight_before(d + 1u), weight_before(d + 2u), weight_before(d + 3u));
        }
        if WHOLE_TABLE {
            asked.page = pages[row * MAX_PAGES + min(lane, MAX_PAGES - 1u)];
        }
    }
    return asked;
}

// The row's heads and its value, and the pages of the run, which are needed first.
fn stage(at: Place, asked: Asked, lane: u32) {
    for (var r = 0u; r < ROUNDS; r++) {
        let i = r * WG + lane;
        let x = asked.heads[r];
        if i < ITEMS {
            raw_heads[i] = x * asked.weights[r];
        } else if OWN_KEYS && i < HEADS * N4 {
            own[i % N4 + N4] = half_of(value_scale(value_at(at.row, at.head)) * x);
        }
        if NORMED {
            let sum = group_sum(dot(x, x), WIDTH);
            if i < ITEMS && i % WIDTH == 0u {
                squares[i / WIDTH] = sum;
            }
        }
    }
    if WHOLE {
        let keys_at = apart(K_AT) + at.row * KV * N4;
        whole_squares[lane] = vec2f(squares_of(at.row * H * N4, H * N4, lane), squares_of(keys_at, KV * N4, lane));
    }
    if WHOLE_TABLE {
        if lane < MAX_PAGES {
            run_pages[lane] = asked.page;
        }
        return;
    }
    let page = at.first / PAGE;
    for (var n = lane; (page + n) * PAGE < at.end; n += WG) {
        run_pages[n] = pages[at.row * MAX_PAGES + page + n];
    }
}

// Norms and rotates queries and key. Queries are scaled, and the key is rounded as in its page.
fn turn_heads(position: u32, first_head: u32, key_head: u32, lane: u32) {
    for (var i = lane; i < ITEMS; i += WG) {
        let head = i / N4;
        let is_key = head == SHARED;
        let norm = norm_start(select(first_head + head, H + key_head, is_key));
        let scale = root(head) * select(query_scale(position), 1.0, is_key);
        var x: vec4f;
        for (var j = 0u; j < 4u; j++) {
            let d = 4u * (i % N4) + j;
            x[j] = scale * element_of(head, d);
            if d < DIMS {
                let angle = turn_of(position, pair_of(d));
                let other = scale * element_of(head, partner_of(d));
                x[j] = x[j] * angle.x + select(-other, other, is_second(d)) * angle.y;
            }
            x[j] *= weight_after(norm + d);
        }
        if is_key {
            own[i % N4] = half_of(x);
        } else {
            turned[i] = x;
        }
    }
    for (var i = SHARED * N4 + lane; i < QUERIES * N4; i += WG) {
        turned[i] = vec4f();
    }
}

fn element_of(head: u32, d: u32) -> f32 { return raw_heads[head * N4 + d / 4u][d % 4u]; }

// A lane's part of the sum of squares of `count` vec4s.
fn squares_of(first: u32, count: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < count; i += WG) {
        sum += dot(qkv[first + i], qkv[first + i]);
    }
    return sum;
}

fn root(head: u32) -> f32 {
    var sum = 0.0;
    if WHOLE {
        let is_key = head == SHARED;
        for (var n = 0u; n < WG; n++) {
            sum += select(whole_squares[n].x, whole_squares[n].y, is_key);
        }
        return root_of(sum, select(H, KV, is_key) * N);
    }
    if NORMED {
        for (var n = 0u; n < N4 / WIDTH; n++) {
            sum += squares[head * (N4 / WIDTH) + n];
        }
    }
    return root_of(sum, HEAD);
}

// The index in the head of the lane's vec4 number c.
fn vec4_of(at: Place, c: u32) -> u32 { return 2u * (at.column + c / 2u * LANES_PER_KEY) + c % 2u; }

// The index of the head in the cache for key number a of a lane. The block of keys begins at position `base`; if PAGED, the
// head of its first key has the index `first`. After the last key, the index is that of the last key.
fn head_of(at: Place, base: u32, first: u32, a: u32) -> u32 {
    let position = min(base + (a ^ at.side) * GROUPS + at.group, at.end - 1u);
    if PAGED {
        return first + (position - base) * KV;
    }
    let page = page_of(at, position);
    return (page * PAGE + position % PAGE) * KV + at.head;
}

fn page_of(at: Place, position: u32) -> u32 {
    return run_pages[position / PAGE - select(at.first / PAGE, 0u, WHOLE_TABLE)];
}

fn first_of(at: Place, base: u32) -> u32 {
    return (page_of(at, base) * PAGE + base % PAGE) * KV + at.head;
}

fn keys_from(at: Place, base: u32) -> array<Raw, RAWS> {
    var found: array<Raw, RAWS>;
    let first = first_of(at, base);
    for (var a = 0u; a < PREFETCH; a++) {
        let head = head_of(at, base, first, a);
        for (var c = 0u; c < CHUNKS; c++) {
            found[a * CHUNKS + c] = raw_key(head, at.column + c * LANES_PER_KEY);
        }
    }
    return found;
}

fn values_from(at: Place, base: u32) -> array<Raw, RAWS> {
    var found: array<Raw, RAWS>;
    let first = first_of(at, base);
    for (var a = 0u; a < PREFETCH; a++) {
        let head = head_of(at, base, first, a);
        for (var c = 0u; c < CHUNKS; c++) {
            found[a * CHUNKS + c] = raw_value(head, at.column + c * LANES_PER_KEY);
        }
    }
    return found;
}

// The sum over the lanes whose numbers differ by a multiple of `near` below `far`.
fn over_lanes(v: Each, near: u32, far: u32) -> Each {
    var sum = v;
    for (var d = near; d < far; d *= 2u) {
        sum += subgroupShuffleXor(sum, d);
    }
    return sum;
}

fn most_of_lanes(v: Each, near: u32, far: u32) -> Each {
    var most = v;
    for (var d = near; d < far; d *= 2u) {
        most = max(most, subgroupShuffleXor(most, d));
    }
    return most;
}

fn over_groups(v: Pack) -> Pack {
    var sum = v;
    for (var d = LANES_PER_KEY; d < SUBGROUP; d *= 2u) {
        sum += shuffled(sum, d);
    }
    return sum;
}

// The sum over subgroups of one vec4 of a head.
fn join(first: u32, number: u32, head: u32, column: u32) {
    var most = tops[head];
    for (var s = 1u; s < SUBGROUPS; s++) {
        most = max(most, tops[s * QUERIES + head]);
    }
    var sum = 0.0;
    var x = vec4f();
    for (var s = 0u; s < SUBGROUPS; s++) {
        let fade = exp(tops[s * QUERIES + head] - most);
        sum += fade * totals[s * QUERIES + head];
        x += fade * sums[(s * QUERIES + head) * N4 + column];
    }
    write(first + head, number, column, x, vec2f(most, sum));
}
