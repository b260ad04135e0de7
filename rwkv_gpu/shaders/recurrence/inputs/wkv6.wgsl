// r, k, v and a gate of RWKV-6; several heads may share those of a key head, and keys may be scaled by what fades
// needs bonus: first_of
// needs decay: decay_at
// needs lib/step: apart
// needs recurrence/sums: token_sum
@group(0) @binding(1) var<storage, read> rkvg: array<vec4f>;            // r [T, H, N / 4], k, v [T, KEY_HEADS, N / 4], gate as r: a stack

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
