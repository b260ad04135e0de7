// q and k of length one, v, and β of a gated delta net; several value heads may share a key head
// needs qkv: qkv_at
// needs recurrence/sums: token_sum, token_sum_of_squares
@group(0) @binding(2) var<storage, read> betas: array<f32>;             // [T, GATES], one of each head
@group(0) @binding(7) var<storage, read> decays: array<f32>;            // [T, DECAYS], of a head, or of each of its channels

const K4 = KEY_HEADS * N4;          // vec4s of q, and of k, in a row
const ROW4 = 2u * K4 + D4;          // of all three

var<workgroup> token_rate: array<f32, BLOCK>;
var<workgroup> token_scales: array<vec2f, BLOCK>;   // of q and of k

fn load_inputs(block: Block, lane: u32) {
    var key_head = block.head % KEY_HEADS;
    var first = block.head < KEY_HEADS;         // of those that share a key head
    if GROUPED != 0u {
        key_head = block.head / (H / KEY_HEADS);
        first = block.head % (H / KEY_HEADS) == 0u;
    }
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
        let beta = betas[(block.row + lane) * GATES + place_of(block.head, 0u)];
        token_rate[lane] = 1.0 / (1.0 + exp(-beta));
    }
    workgroupBarrier();
    for (var i = lane; i < block.tokens * N4; i += WG) {
        block_r[i] *= token_scales[i / N4].x;
        block_k[i] *= token_scales[i / N4].y;
    }
    workgroupBarrier();
}

// Where a head's β (0) or decay (1) stands in a row; both may share a tensor: by key head its βs, then its decays.
fn place_of(head: u32, which: u32) -> u32 {
    if SHARED != 0u {
        let each = H / KEY_HEADS;
        return head / each * 2u * each + which * each + head % each;
    }
    return head;
}

fn decay_input(row: u32, d: u32) -> f32 {
    return decays[row * DECAYS + place_of(d, 1u)];
}

fn rate_of(token: u32) -> f32 { return token_rate[token]; }

fn softplus(x: f32) -> f32 {
    if x > 20.0 {
        return x;
    }
    return log(1.0 + exp(x));
}
