// Queries of attention over prompts.

//# rotate_here
// Unrotated queries, for steps in which each sequence has one row: rotates them here, and writes key and value first.
// needs attention/heads: turned8, write_kv; attention/block: Block
fn block_of(index: u32, _head: u32) -> Block {
    var found = Block();
    if index < step.rows {
        found = Block(index, 1u, places[index].x, index);
    }
    return found;
}

fn prepare(block: Block, heads: u32, head: u32, last: bool, lane: u32) {
    for (var i = SHARED * N4 + lane; i < Q * N4; i += WG) {
        queries[i] = vec4f();
    }
    let turned = select(SHARED, SHARED + 1u, OWN_KEYS && last);     // the key, if the row itself is in this run of the context
    for (var i = lane; i < turned * N8; i += WG) {
        let query = i / N8;
        let x = turned8(block.first, select(H + head, heads * SHARED + query, query < SHARED), i % N8);
        if query < SHARED {
            queries[2u * i] = x.low;
            queries[2u * i + 1u] = x.high;
        } else {
            write_kv(block.first, head, i % N8, x);
        }
    }
    storageBarrier();
}

//# chosen
// Rotated queries of one row, which sees chosen positions of each KV head, or of all. Those count as its positions.
// needs attention/blocks_of_segments: nth_block
@group(0) @binding(4) var<storage, read> chosen: array<u32>;        // [T, LISTS, LENGTH] of positions, ascending, then NO_KEY

fn list_of(t: u32, head: u32) -> u32 { return (t * LISTS + head % LISTS) * LENGTH; }

fn block_of(index: u32, head: u32) -> Block {
    var block = nth_block(index, 1u, 1u);
    var least = 0u;     // the number of positions, found by halving
    var most = select(0u, LENGTH, block.count > 0u);
    for (var n = 1u; n <= LENGTH; n *= 2u) {
        let middle = (least + most) / 2u;
        if least == most {
            break;
        }
        if chosen[list_of(block.first, head) + middle] == NO_KEY {
            most = middle;
        } else {
            least = middle + 1u;
        }
    }
    block.position = max(least, 1u) - 1u;
    return block;
}

//# rotated: Rotated queries in blocks of rows of one sequence.
// needs attention/blocks_of_segments: nth_block
fn block_of(index: u32, _head: u32) -> Block { return nth_block(index, 1u, ROWS); }

//# written: Queries that `attention/kv_write` has rotated; K and V are complete.
@group(0) @binding(1) var<storage, read> q: array<vec4f>;           // [T, H, N / 4]
@group(0) @binding(3) var<storage, read> segments: array<Segment>;  // [S]
@group(0) @binding(5) var<storage, read> keys: array<CacheWord>;    // [pages, PAGE, KV, N]
@group(0) @binding(6) var<storage, read> values: array<CacheWord>;  // [pages, PAGE, KV, N]

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
