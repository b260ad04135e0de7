// Queries that `attention/kv_write` has rotated, of rows that stand in blocks of a sequence; K and V are complete.
// needs attention/blocks_of_segments: nth_block
@group(0) @binding(1) var<storage, read> q: array<vec4f>;           // [T, H, N / 4]
@group(0) @binding(3) var<storage, read> segments: array<Segment>;  // [S]
@group(0) @binding(5) var<storage, read> keys: array<CacheWord>;    // [pages, PAGE, KV, N]
@group(0) @binding(6) var<storage, read> values: array<CacheWord>;  // [pages, PAGE, KV, N]

fn block_of(index: u32) -> Block { return nth_block(index, 1u, ROWS); }

fn prepare(block: Block, heads: u32, _head: u32, _last: bool, lane: u32) {
    for (var i = lane; i < Q * N4; i += WG) {
        let query = i / N4;
        var x = vec4f();
        if query < block.count * SHARED {
            let t = block.first + query / SHARED;
            x = q[(t * H + heads * SHARED + query % SHARED) * N4 + i % N4];
        }
        queries[i] = x;
    }
}
