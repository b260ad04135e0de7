// y[q] = sum_j softmax_j(scale · query q · K[j]) K[j, :N]      a workgroup for Q queries and a run of the context
//
// All heads read the same latents, so a query is any head of any row: a block of queries is Q neighbours [t, h]. A workgroup
// processes KEYS positions of one page at a time. Scores are a product of two tiles, CHUNK vec4s of the width at a time: a lane
// computes the scores of 4 queries and 4 keys over every PARTS-th vec4; these partial sums are then added. Some lanes compute
// the softmax of 4 queries. Each lane sums one vec4 of the latents for 4 queries. The running maximum of a query rescales earlier sums.
// needs attention/eight: Eight; attention/partition: cut_of; attention/soften: soften; latent read: latent4, latent8
// needs queries: part_of; query scale: query_scale; result: write; keys: first_key, key_row
@group(0) @binding(1) var<storage, read> q: array<vec4f>;               // [T, H, N / 4]
@group(0) @binding(2) var<storage, read> r: array<vec4f>;               // [T, H, R / 4]
@group(0) @binding(5) var<storage, read> keys: array<vec4u>;            // [pages, PAGE, WIDTH]
@group(0) @binding(7) var<storage, read> pages: array<u32>;             // [S, MAX_PAGES]
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4], or by run

const N4 = N / 4u;
const WIDTH4 = WIDTH / 4u;
const WIDTH8 = WIDTH / 8u;
const Q4 = Q / 4u;
const CHUNKS = (WIDTH4 + CHUNK - 1u) / CHUNK;
const STRIDE = KEYS + 1u;                   // distance of two columns of keys in vec4s; neighbours are in different banks
const ACROSS = KEYS / 4u;                   // lanes for all keys
const TILES = Q4 * ACROSS;
const PARTS = WG / TILES;                   // lanes that share a tile
const SPREAD = 16u;                         // lanes that share the softmax of 4 queries
const UNITS = Q4 * N4;                      // a vec4 of 4 queries each
const MINE = (UNITS + WG - 1u) / WG;        // units per lane

const_assert Q % 4u == 0u;
const_assert TILES <= WG;
const_assert SPREAD * Q4 <= WG;
const_assert PAGE % KEYS == 0u;
const_assert GRAIN % KEYS == 0u;
const_assert CHUNK % 2u == 0u && SPREAD * Q4 <= CHUNK * Q;

var<workgroup> k_tile: array<vec4f, CHUNK * STRIDE>;    // keys by column; later the maxima of the lanes
var<workgroup> q_tile: array<vec4f, CHUNK * Q>;         // queries by column; later the sums of the lanes

fn run(group: u32, lane: u32) {
    let own = part_of(group, lane);
    let block = own.block;
    let number = own.run;
    if block.count == 0u {
        return;
    }
    let last = position_of(block, block.count - 1u);
    let cut = cut_of(block.position, last, number);
    if cut.start >= cut.end {
        return;
    }
    if lane < Q4 {
        most[lane] = vec4f(LOWEST);
        sums[lane] = vec4f();
    }
    var acc: array<vec4f, 4u * MINE>;
    for (var i = 0u; i < 4u * MINE; i++) {
        acc[i] = vec4f();
    }
    for (var base = cut.start / KEYS * KEYS; base < cut.end; base += KEYS) {
        let count = min(KEYS, cut.end - base);
        let row = first_key(block.segment, base);
        score(block, base, row, lane);
        soften(count, lane);
        workgroupBarrier();
        gather(&acc, count, row, lane);
        workgroupBarrier();
    }
    for (var n = 0u; n < MINE; n++) {
        let unit = n * WG + lane;
        let four = unit / N4;
        for (var i = 0u; i < 4u; i++) {
            let query = 4u * four + i;
            if query < block.count {
                let found = vec2f(most[min(four, Q4 - 1u)][i], sums[min(four, Q4 - 1u)][i]);
                write(block.first + query, number, unit % N4, acc[4u * n + i], found);
            }
        }
    }
}

// The position of the row of a query.
fn position_of(block: Block, query: u32) -> u32 { return block.position + (block.first % H + query) / H; }

// Computes the scores of the KEYS positions from `base` on; `row` is the start of the keys.
fn score(block: Block, base: u32, row: u32, lane: u32) {
    let key = lane % ACROSS;
    let four = lane / ACROSS % Q4;
    let part = lane / TILES;
    var s: array<vec4f, 4>;     // scores of the keys key, key + ACROSS ...
    for (var j = 0u; j < 4u; j++) {
        s[j] = vec4f();
    }
    for (var c = 0u; c < CHUNKS; c++) {
        stage(block, row, c, lane);
        workgroupBarrier();
        for (var n = part; n < select(0u, CHUNK, part < PARTS); n += PARTS) {
            let at = n * Q + 4u * four;
            for (var j = 0u; j < 4u; j++) {
                let k = k_tile[n * STRIDE + j * ACROSS + key];
                s[j] += vec4f(dot(q_tile[at], k), dot(q_tile[at + 1u], k), dot(q_tile[at + 2u], k), dot(q_tile[at + 3u], k));
            }
        }
        workgroupBarrier();
    }
    let head = block.first % H + 4u * four;
    let positions = vec4u(block.position) + (vec4u(0u, 1u, 2u, 3u) + head) / H;
    let scales = vec4f(
        query_scale(positions.x), query_scale(positions.y), query_scale(positions.z), query_scale(positions.w),
    );
    for (var p = 0u; p < PARTS; p++) {
        for (var j = 0u; j < select(0u, 4u, part == p); j++) {
            let k = j * ACROSS + key;
            let sum = s[j] + select(weights[k * Q4 + four], vec4f(), p == 0u);
            let seen = (vec4u(base + k) <= positions) & (vec4u(base + k + WINDOW) > positions);
            let whole = select(vec4f(LOWEST), scales * sum, seen);
            weights[k * Q4 + four] = select(sum, whole, p + 1u == PARTS);
        }
        workgroupBarrier();
    }
}

// Copies chunk c of the width of queries and keys to workgroup memory; zeros beyond the end.
fn stage(block: Block, row: u32, c: u32, lane: u32) {
    for (var i = lane; i < KEYS * (CHUNK / 2u); i += WG) {
        let key = i / (CHUNK / 2u);
        let column = i % (CHUNK / 2u);
        let eight = c * (CHUNK / 2u) + column;
        var x = Eight();
        if eight < WIDTH8 {
            x = latent8(key_row(row, key) * WIDTH8 + eight);
        }
        k_tile[2u * column * STRIDE + key] = x.low;
        k_tile[(2u * column + 1u) * STRIDE + key] = x.high;
    }
    for (var i = lane; i < Q * CHUNK; i += WG) {
        let query = i / CHUNK;
        q_tile[i % CHUNK * Q + query] = query4(block.first + min(query, block.count - 1u), c * CHUNK + i % CHUNK);
    }
}

// A vec4 of a query: first the part for latents, then the rotated part.
fn query4(query: u32, column: u32) -> vec4f {
    if column < N4 {
        return q[query * N4 + column];
    }
    if column < WIDTH4 {
        return r[query * (WIDTH4 - N4) + column - N4];
    }
    return vec4f();
}

fn put_top(lane: u32, top: vec4f) { k_tile[lane] = top; }
fn top_at(lane: u32) -> vec4f { return k_tile[lane]; }
fn put_total(lane: u32, total: vec4f) { q_tile[lane] = total; }
fn total_at(lane: u32) -> vec4f { return q_tile[lane]; }

// Adds the latents, weighted by the exponentials, to a lane's part of y.
fn gather(acc: ptr<function, array<vec4f, 4u * MINE>>, count: u32, row: u32, lane: u32) {
    for (var n = 0u; n < MINE; n++) {
        let f = fade[min((n * WG + lane) / N4, Q4 - 1u)];
        (*acc)[4u * n] *= f.x;
        (*acc)[4u * n + 1u] *= f.y;
        (*acc)[4u * n + 2u] *= f.z;
        (*acc)[4u * n + 3u] *= f.w;
    }
    for (var j = 0u; j < count; j++) {
        for (var n = 0u; n < MINE; n++) {
            let unit = n * WG + lane;
            let v = latent4(key_row(row, j) * WIDTH4 + unit % N4);
            let w = weights[j * Q4 + min(unit / N4, Q4 - 1u)];
            (*acc)[4u * n] += w.x * v;
            (*acc)[4u * n + 1u] += w.y * v;
            (*acc)[4u * n + 2u] += w.z * v;
            (*acc)[4u * n + 3u] += w.w * v;
        }
    }
}
