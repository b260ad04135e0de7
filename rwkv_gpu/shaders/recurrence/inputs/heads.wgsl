// q, k and v of each head, one head after the other: nothing is removed, and no token counts by itself
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
