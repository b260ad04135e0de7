// RWKV-6: r reads S before its token, and the token by its channels' bonus, if there is one.
// needs bonus: first_of
// needs kernel: item_place
// needs lib/step: apart
// needs recurrence/sums: token_sum
@group(0) @binding(1) var<storage, read> rkvg: array<vec4f>;            // r [T, H, N / 4], k, v [T, KEY_HEADS, N / 4], gate as r: a stack

const K4 = KEY_HEADS * N4;

var<workgroup> token_bonus: array<f32, BLOCK>;

fn prepare_output(block: Block, lane: u32) {
    if READS_OLD != 0u {
        for (var i = lane; i < block.tokens * N4; i += WG) {
            let d = block.head * N4 + i % N4;
            sums[i] = dot(rkvg[item_place(block, i)] * rkvg[apart(D4) + key_at(block, i)], first_of(d));
        }
        workgroupBarrier();
        if lane < block.tokens {
            token_bonus[lane] = token_sum(lane);
        }
        workgroupBarrier();
        for (var i = lane; i < block.tokens * N4; i += WG) {
            block_y[i] += token_bonus[i / N4] * rkvg[apart(D4) + apart(K4) + key_at(block, i)];
        }
    }
    workgroupBarrier();
}

fn key_at(block: Block, i: u32) -> u32 {
    return (block.row + i / N4) * K4 + block.head / (H / KEY_HEADS) * N4 + i % N4;
}

fn with_bonus(_token: u32, _i: u32, normed: vec4f) -> vec4f { return normed; }
fn gate_of(place: u32) -> vec4f { return rkvg[apart(D4) + 2u * apart(K4) + place]; }
