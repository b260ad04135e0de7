// q and k of length one, v, and β of a gated delta net; several value heads may share a key head
// needs qkv: qkv_at
// needs recurrence/delta_tensors: key_head_of, key_is_first, rate_at
// needs recurrence/sums: token_sum, token_sum_of_squares
var<workgroup> token_rate: array<f32, BLOCK>;
var<workgroup> token_scales: array<vec2f, BLOCK>;   // of q and of k

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
