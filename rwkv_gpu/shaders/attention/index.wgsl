// The scores by which an indexer chooses blocks of BLOCK positions.

//# largest: Each head has its own list, by the largest product of its query with a key of the block. RECENT blocks come first.
// needs kernel: key_at, ordered, product
fn scored_blocks(length: u32) -> u32 { return (length + BLOCK - 1u) / BLOCK; }

fn score_of(t: u32, head: u32, block: u32, length: u32) -> u32 {
    if block + RECENT >= scored_blocks(length) {
        return 0xffffffffu;
    }
    var most = 0u;
    for (var j = block * BLOCK; j < min(length, (block + 1u) * BLOCK); j++) {
        var key = key_at(t, j);
        most = max(most, ordered(product(t * H + head, &key)));
    }
    return most;
}

//# unweighted: Complete blocks, by the sum of the positive products of all heads with the last key.
// needs kernel: key_at, ordered, product
fn scored_blocks(length: u32) -> u32 { return length / BLOCK; }

fn score_of(t: u32, _head: u32, block: u32, _length: u32) -> u32 {
    var key = key_at(t, block * BLOCK + BLOCK - 1u);
    var sum = 0.0;
    for (var h = 0u; h < H; h++) {
        sum += max(product(t * H + h, &key), 0.0);
    }
    return ordered(sum);
}

//# weighted: Complete blocks, by the weighted sum of the positive products of all heads with the last key.
// needs kernel: key_at, ordered, product
@group(0) @binding(2) var<storage, read> weights: array<f32>;           // [T, H]

fn scored_blocks(length: u32) -> u32 { return length / BLOCK; }

fn score_of(t: u32, _head: u32, block: u32, _length: u32) -> u32 {
    var key = key_at(t, block * BLOCK + BLOCK - 1u);
    var sum = 0.0;
    for (var h = 0u; h < H; h++) {
        sum += weights[t * H + h] * max(product(t * H + h, &key), 0.0);
    }
    return ordered(sum);
}
