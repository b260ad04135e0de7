// Queries of rows that stand in segments: a block is Q heads of neighbouring rows of one sequence.
// needs kernel: Block
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]

fn block_of(index: u32) -> Block {
    var left = index;
    for (var s = 0u; s < step.segments; s++) {
        let segment = segments[s];
        let queries = segment.count * H;
        let blocks = (queries + Q - 1u) / Q;
        if left < blocks {
            let done = left * Q;
            return Block(segment.first * H + done, min(Q, queries - done), segment.start + done / H, s);
        }
        left -= blocks;
    }
    return Block();
}
