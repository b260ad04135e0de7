// S = S diag(w) + v kᵀ - (S κ)(κ a)ᵀ, y = (norm(S r) + (r · k r_k) v) gate      one workgroup per segment and head, SPLIT lanes per ROWS rows of S
//
// S stays in registers, as tiles of ROWS rows and 4 columns. BLOCK tokens at a time are made ready by all lanes together
// in workgroup memory, then run through without a barrier, then normed and written by all lanes together. Software Vulkan
// stops an invocation after 65,535 turns of all its loops, so the inner ones are unrolled by 4.
// needs gate: gate_of
// needs lib/step: apart
// needs row sum: row_add
// needs tile: Rows, Tile, load_tile, load_v, next, store_tile, store_y, times
// needs value: value
@group(0) @binding(1) var<storage, read> rkv: array<vec4f>;             // r, k, v [T, H, N / 4], the parts R, K, V of a stack
@group(0) @binding(2) var<storage, read> gates: array<vec4f>;           // w, a, gate, v_gate [T, H, N / 4], the parts W, A, G, VG
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // k_k, k_a, r_k, norm weight and bias [5, H, N / 4]
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(5) var<storage, read_write> state: array<vec4f>;     // [states, H, N, N / 4], value by key
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;         // [T, H, N / 4]

const_assert WG == N / ROWS * SPLIT;
const_assert COLUMNS % 4u == 0u;
const_assert BLOCK <= WG;
const N4 = N / 4u;
const D4 = H * N4;
const COLUMNS = N4 / SPLIT;         // tiles of a lane: every SPLIT-th, so that lanes load side by side
const ITEMS = BLOCK * N4;           // vec4s of a vector in a block

var<workgroup> block_r: array<vec4f, ITEMS>;
var<workgroup> block_w: array<vec4f, ITEMS>;
var<workgroup> block_k: array<vec4f, ITEMS>;
var<workgroup> block_v: array<vec4f, ITEMS>;
var<workgroup> block_kk: array<vec4f, ITEMS>;       // κ, not yet normalised
var<workgroup> block_ka: array<vec4f, ITEMS>;       // κ a, not yet normalised
var<workgroup> block_y: array<f32, 4u * ITEMS>;
var<workgroup> sums: array<f32, ITEMS>;
var<workgroup> squares: array<f32, ITEMS>;
var<workgroup> token_scale: array<f32, BLOCK>;      // 1 / |κ|², later 1 / deviation of S r
var<workgroup> token_mean: array<f32, BLOCK>;       // of S r
var<workgroup> token_bonus: array<f32, BLOCK>;

fn run(group: u32, lane: u32) {
    if group / H >= step.segments {
        return;
    }
    let segment = segments[group / H];
    let head = group % H;
    let row = lane / SPLIT * ROWS;
    let part = lane % SPLIT;
    let source = ((segment.source * H + head) * N + row) * N4 + part;
    let written = ((segment.written * H + head) * N + row) * N4 + part;
    var s: array<Tile, COLUMNS>;
    for (var c = 0u; c < COLUMNS; c++) {
        s[c] = Tile();
        if segment.start > 0u {
            s[c] = load_tile(source + c * SPLIT);
        }
    }
    for (var done = 0u; done < segment.count; done += BLOCK) {
        let tokens = min(BLOCK, segment.count - done);
        let at = (segment.first + done) * D4 + head * N4;
        let last = last_of(at, tokens, head, lane);     // on its way while the tokens are run through
        prepare(at, tokens, head, lane);
        for (var token = 0u; token < tokens; token++) {
            let base = token * N4 + part;
            var removed = Rows();
            for (var c = 0u; c < COLUMNS; c += 4u) {
                removed += times(s[c], block_kk[base + c * SPLIT]);
                removed += times(s[c + 1u], block_kk[base + (c + 1u) * SPLIT]);
                removed += times(s[c + 2u], block_kk[base + (c + 2u) * SPLIT]);
                removed += times(s[c + 3u], block_kk[base + (c + 3u) * SPLIT]);
            }
            removed = row_add(removed) * token_scale[token];
            let v = load_v(token * N + row);
            var out = Rows();
            for (var c = 0u; c < COLUMNS; c += 4u) {
                out += advance(&s, c, base, v, removed);
                out += advance(&s, c + 1u, base, v, removed);
                out += advance(&s, c + 2u, base, v, removed);
                out += advance(&s, c + 3u, base, v, removed);
            }
            out = row_add(out);
            if part == 0u {
                store_y(token * N + row, out);
            }
        }
        conclude(last, at, tokens, head, lane);
    }
    for (var c = 0u; c < COLUMNS; c++) {
        store_tile(written + c * SPLIT, s[c]);
    }
}

// One tile of S, a token on; gives its part of S r.
fn advance(s: ptr<function, array<Tile, COLUMNS>>, c: u32, base: u32, v: Rows, removed: Rows) -> Rows {
    let j = base + c * SPLIT;
    let now = next((*s)[c], block_w[j], block_k[j], block_ka[j], v, removed);
    (*s)[c] = now;
    return times(now, block_r[j]);
}

// Loads a block of tokens: all that does not depend on S.
fn prepare(at: u32, tokens: u32, head: u32, lane: u32) {
    workgroupBarrier();                 // the block before has been read by all
    for (var i = lane; i < tokens * N4; i += WG) {
        let token = at + (i / N4) * D4 + i % N4;
        let d = head * N4 + i % N4;
        let r = rkv[R * apart(D4) + token];
        let raw = rkv[K * apart(D4) + token];
        let a = gates[A * apart(D4) + token];
        let kk = raw * vectors[d];
        let k = raw * (1.0 + (a - 1.0) * vectors[D4 + d]);
        block_r[i] = r;
        block_w[i] = gates[W * apart(D4) + token];
        block_k[i] = k;
        block_v[i] = value(token, rkv[V * apart(D4) + token]);
        block_kk[i] = kk;
        block_ka[i] = kk * a;
        squares[i] = dot(kk, kk);
        sums[i] = dot(r * k, vectors[2u * D4 + d]);
    }
    workgroupBarrier();
    if lane < tokens {
        let scale = 1.0 / max(sqrt(token_sum_of_squares(lane)), 1e-12);
        token_scale[lane] = scale * scale;
        token_bonus[lane] = token_sum(lane);
    }
    workgroupBarrier();
}

// What a vec4 of S r is multiplied by at the end.
struct Last {
    weight: vec4f,
    bias: vec4f,
    gate: vec4f,
}

fn last_of(at: u32, tokens: u32, head: u32, i: u32) -> Last {
    if i >= tokens * N4 {
        return Last();
    }
    let d = head * N4 + i % N4;
    return Last(vectors[3u * D4 + d], vectors[4u * D4 + d], gate_of(at + i / N4 * D4 + i % N4));
}

// Norms, adds the bonus, gates and writes a block of tokens; `first` is what a lane's first vec4 wants.
fn conclude(first: Last, at: u32, tokens: u32, head: u32, lane: u32) {
    workgroupBarrier();
    for (var i = lane; i < tokens * N4; i += WG) {
        sums[i] = dot(y4(i), vec4f(1.0));
    }
    workgroupBarrier();
    if lane < tokens {
        token_mean[lane] = token_sum(lane) / f32(N);
    }
    workgroupBarrier();
    for (var i = lane; i < tokens * N4; i += WG) {
        let centred = y4(i) - token_mean[i / N4];
        squares[i] = dot(centred, centred);
    }
    workgroupBarrier();
    if lane < tokens {
        token_scale[lane] = inverseSqrt(token_sum_of_squares(lane) / f32(N) + EPS);
    }
    workgroupBarrier();
    for (var i = lane; i < tokens * N4; i += WG) {
        let token = i / N4;
        var last = first;
        if i != lane {
            last = last_of(at, tokens, head, i);
        }
        let normed = (y4(i) - token_mean[token]) * token_scale[token] * last.weight + last.bias;
        y[at + token * D4 + i % N4] = fma(vec4f(token_bonus[token]), block_v[i], normed) * last.gate;
    }
}

fn y4(i: u32) -> vec4f {
    return vec4f(block_y[4u * i], block_y[4u * i + 1u], block_y[4u * i + 2u], block_y[4u * i + 3u]);
}

fn token_sum(token: u32) -> f32 {
    var sum = 0.0;
    for (var i = token * N4; i < (token + 1u) * N4; i += 4u) {
        sum += (sums[i] + sums[i + 1u]) + (sums[i + 2u] + sums[i + 3u]);
    }
    return sum;
}

fn token_sum_of_squares(token: u32) -> f32 {
    var sum = 0.0;
    for (var i = token * N4; i < (token + 1u) * N4; i += 4u) {
        sum += (squares[i] + squares[i + 1u]) + (squares[i + 2u] + squares[i + 3u]);
    }
    return sum;
}
