// The queries of a step in blocks of up to `size`, each of one sequence; a row has `heads` of them.
// needs attention/block: Block
fn nth_block(index: u32, heads: u32, size: u32) -> Block {
    var found = Block();    // FXC refuses barriers after what came of a function with two returns
    var left = index;
    for (var s = 0u; s < step.segments; s++) {
        let segment = segments[s];
        let queries = segment.count * heads;
        let blocks = (queries + size - 1u) / size;
        if left < blocks {
            let done = left * size;
            found = Block(segment.first * heads + done, min(size, queries - done), segment.start + done / heads, s);
            break;
        }
        left -= blocks;
    }
    return found;
}

// Behind the last position of a sequence in this step.
fn end_of(segment: u32) -> u32 { return segments[segment].start + segments[segment].count; }
