// The inputs of a token.

//# delta_rule: The inputs of a gated delta net: q and k of length one, v, and β. Several value heads may share a key head.
// needs qkv: qkv_at; recurrence/delta_tensors: key_head_of, key_is_first, rate_at
// needs recurrence/sums: token_sum, token_sum_of_squares
var<workgroup> token_rate: array<f32, BLOCK>;
var<workgroup> token_scales: array<vec2f, BLOCK>;   // the factors of q and of k

fn load_inputs(block: Block, lane: u32) {
    let key_head = key_head_of(block.head);
    let first = key_is_first(block.head);
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let row = block.row + i / N4;
        let n = i % N4;
        block_r[i] = qkv_at(row, 0u, key_head * N4 + n, first);
        block_k[i] = qkv_at(row, 1u, key_head * N4 + n, first);
        block_v[i] = qkv_at(row, 2u, block.head * N4 + n, true);
        sums[i] = dot(block_r[i], block_r[i]);
        squares[i] = dot(block_k[i], block_k[i]);
    }
    workgroupBarrier();
    if lane < block.tokens {
        let lengths = vec2f(token_sum(lane), token_sum_of_squares(lane));
        token_scales[lane] = inverseSqrt(lengths + EPS) * vec2f(inverseSqrt(f32(N)), 1.0);
        token_rate[lane] = rate_at(block.row + lane, block.head);
    }
    workgroupBarrier();
    for (var i = lane; i < block.tokens * N4; i += WG) {
        block_r[i] *= token_scales[i / N4].x;
        block_k[i] *= token_scales[i / N4].y;
    }
    workgroupBarrier();
}

fn rate_of(token: u32) -> f32 { return token_rate[token]; }

//# heads: q, k and v of each head, head by head. No value is removed from the state, and the present token has no bonus.
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;             // [T, H, 3, N / 4]

fn load_inputs(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let place = 3u * ((block.row + i / N4) * D4 + block.head * N4) + i % N4;
        block_r[i] = qkv[place];
        block_k[i] = qkv[place + N4];
        block_v[i] = qkv[place + 2u * N4];
    }
    workgroupBarrier();
}

fn bonus_of(_token: u32) -> f32 { return 0.0; }

//# wkv6: Reads the inputs of RWKV-6: r, k, v and a gate. Several heads may share one head of k and v. With FADES, k is multiplied by 1 - decay.
// needs bonus: first_of; decay: decay_at; lib/step: apart; recurrence/sums: token_sum
@group(0) @binding(1) var<storage, read> rkvg: array<vec4f>;            // a stack of r [T, H, N / 4], k and v [T, KEY_HEADS, N / 4], and the gate [T, H, N / 4]

const K4 = KEY_HEADS * N4;

var<workgroup> token_bonus: array<f32, BLOCK>;

fn load_inputs(block: Block, lane: u32) {
    let key_head = block.head / (H / KEY_HEADS);
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let row = block.row + i / N4;
        let d = block.head * N4 + i % N4;
        let key = row * K4 + key_head * N4 + i % N4;
        let r = rkvg[row * D4 + d] * SCALE;
        var k = rkvg[apart(D4) + key];
        if FADES != 0u {
            k *= 1.0 - decay_at(i / N4, i);
        }
        block_r[i] = r;
        block_k[i] = k;
        block_v[i] = rkvg[apart(D4) + apart(K4) + key];
        sums[i] = dot(r * k, first_of(d));
    }
    workgroupBarrier();
    if lane < block.tokens {
        token_bonus[lane] = token_sum(lane);
    }
    workgroupBarrier();
}

fn bonus_of(token: u32) -> f32 { return token_bonus[token]; }
fn with_bonus(_token: u32, _i: u32, normed: vec4f) -> vec4f { return normed; }
fn gate_of(place: u32) -> vec4f { return rkvg[apart(D4) + 2u * apart(K4) + place]; }
