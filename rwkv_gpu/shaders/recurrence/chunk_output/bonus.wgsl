// The present token of RWKV-7 counts by r · k r_k.
// needs kernel: item_place
// needs recurrence/sums: token_sum
// needs rwkv/mixed: key_of, own_value, part_of
const GAIN = 3u;                    // of `vectors`: k_k, k_a, r_k, norm weight and bias [5, H, N / 4]

var<workgroup> block_v: array<vec4f, ITEMS>;
var<workgroup> token_bonus: array<f32, BLOCK>;

fn prepare_output(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let place = item_place(block, i);
        let d = block.head * N4 + i % N4;
        block_v[i] = own_value(place);
        sums[i] = dot(part_of(R, place) * key_of(place, d), vectors[2u * D4 + d]);
    }
    workgroupBarrier();
    if lane < block.tokens {
        token_bonus[lane] = token_sum(lane);
    }
    workgroupBarrier();
}

fn with_bonus(token: u32, i: u32, normed: vec4f) -> vec4f {
    return fma(vec4f(token_bonus[token]), block_v[i], normed);
}
