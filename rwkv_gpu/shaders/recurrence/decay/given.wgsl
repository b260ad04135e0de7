// Each channel of the key has its decay, between 0 and 1, computed before.
// needs recurrence/walk: item_place
@group(0) @binding(2) var<storage, read> decays: array<vec4f>;          // [T, H, N / 4]

var<workgroup> block_w: array<vec4f, ITEMS>;

fn prepare_decay(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        block_w[i] = decays[item_place(block, i)];
    }
}

fn decay_at(_token: u32, i: u32) -> vec4f { return block_w[i]; }
