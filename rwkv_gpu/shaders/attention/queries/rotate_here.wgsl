// Queries as the matrices leave them, where each sequence has one row: rotated here, with its key and value written first.
// needs attention/heads: turned8, write_kv
// needs attention/block: Block
fn block_of(index: u32) -> Block {
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
    let turned = select(SHARED, SHARED + 1u, OWN_KEYS && last);     // the key where its own row is in this run of the context
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
