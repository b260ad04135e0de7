// S = S diag(w) + v kᵀ - (S κ)(κ a)ᵀ, y = (norm(S r) + (r · k r_k) v) gate      one workgroup per segment and head
// needs recurrence/sums: token_sum, token_sum_of_squares; recurrence/walk: item_place
// needs rwkv/mixed: gate_part, own_value, part_of; row sum: row_add; tile: Rows, load_v, next, times
const GAIN = 3u;                    // the first norm vector in `vectors`: k_k, k_a, r_k, norm weight and bias [5, H, N / 4]

var<workgroup> block_w: array<vec4f, ITEMS>;
var<workgroup> block_kk: array<vec4f, ITEMS>;       // κ, not yet normalised
var<workgroup> block_ka: array<vec4f, ITEMS>;       // κ a, not yet normalised
var<workgroup> token_scale: array<f32, BLOCK>;      // 1 / |κ|²
var<workgroup> token_bonus: array<f32, BLOCK>;

// Advances S by a token. Returns a lane's part of S r.
fn advance(s: ptr<function, array<Tile, COLUMNS>>, token: u32, base: u32, row: u32) -> Rows {
    var removed = Rows(0.0);
    for (var c = 0u; c < COLUMNS; c += 4u) {
        removed += times((*s)[c], block_kk[base + c * SPLIT]);
        removed += times((*s)[c + 1u], block_kk[base + (c + 1u) * SPLIT]);
        removed += times((*s)[c + 2u], block_kk[base + (c + 2u) * SPLIT]);
        removed += times((*s)[c + 3u], block_kk[base + (c + 3u) * SPLIT]);
    }
    removed = row_add(removed) * token_scale[token];
    let v = load_v(token * N + row);
    var out = Rows(0.0);
    for (var c = 0u; c < COLUMNS; c += 4u) {
        out += advance_tile(s, c, base, v, removed);
        out += advance_tile(s, c + 1u, base, v, removed);
        out += advance_tile(s, c + 2u, base, v, removed);
        out += advance_tile(s, c + 3u, base, v, removed);
    }
    return row_add(out);
}

// Advances one tile of S by a token. Returns its part of S r.
fn advance_tile(s: ptr<function, array<Tile, COLUMNS>>, c: u32, base: u32, v: Rows, removed: Rows) -> Rows {
    let j = base + c * SPLIT;
    let now = next((*s)[c], block_w[j], block_k[j], block_ka[j], v, removed);
    (*s)[c] = now;
    return times(now, block_r[j]);
}

// Loads the values of a block of tokens that do not depend on S.
fn prepare(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let token = item_place(block, i);
        let d = block.head * N4 + i % N4;
        let r = part_of(R, token);
        let raw = part_of(K, token);
        let a = gate_part(A, token);
        let kk = raw * vectors[d];
        let k = raw * (1.0 + (a - 1.0) * vectors[D4 + d]);
        block_r[i] = r;
        block_w[i] = gate_part(W, token);
        block_k[i] = k;
        block_v[i] = own_value(token);
        block_kk[i] = kk;
        block_ka[i] = kk * a;
        squares[i] = dot(kk, kk);
        sums[i] = dot(r * k, vectors[2u * D4 + d]);
    }
    workgroupBarrier();
    if lane < block.tokens {
        let scale = 1.0 / max(sqrt(token_sum_of_squares(lane)), 1e-12);
        token_scale[lane] = scale * scale;
        token_bonus[lane] = token_sum(lane);
    }
    workgroupBarrier();
}

fn with_bonus(token: u32, i: u32, normed: vec4f) -> vec4f {
    return fma(vec4f(token_bonus[token]), block_v[i], normed);
}
