// RWKV-6: nothing is removed; several heads may share a key head, and keys may be scaled by what fades
// needs kernel: Inputs
// needs lib/step: apart
// needs recurrence/chunk: key_place
@group(0) @binding(1) var<storage, read> rkvg: array<vec4f>;            // r [T, H, N / 4], k, v [T, KEY_HEADS, N / 4], gate as r: a stack
@group(0) @binding(2) var<storage, read> decays: array<vec4f>;          // [T, H, N / 4]

const K4 = KEY_HEADS * N4;

fn prepare_tokens(_block: Block, _lane: u32) {}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let place = key_place(block, token, n);
    let w = decays[place];
    var k = rkvg[apart(D4) + shared_place(block, token, n)];
    if FADES != 0u {
        k *= 1.0 - w;
    }
    return Inputs(rkvg[place] * SCALE, w, k, vec4f(), k);
}

fn value_at(block: Block, token: u32, n: u32) -> vec4f {
    return rkvg[apart(D4) + apart(K4) + shared_place(block, token, n)];
}

// A vec4 of the key head of a head.
fn shared_place(block: Block, token: u32, n: u32) -> u32 {
    return (block.row + token) * K4 + block.head / (H / KEY_HEADS) * N4 + n;
}
