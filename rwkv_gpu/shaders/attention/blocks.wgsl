// Rows of a step in blocks of up to ROWS, each of one sequence.
struct Block {
    first: u32,     // row of the step
    count: u32,
    position: u32,  // of the first in its sequence
    segment: u32,
}

fn block_of(index: u32) -> Block {
    var left = index;
    for (var s = 0u; s < step.segments; s++) {
        let segment = segments[s];
        let blocks = (segment.count + ROWS - 1u) / ROWS;
        if left < blocks {
            let done = left * ROWS;
            return Block(segment.first + done, min(ROWS, segment.count - done), segment.start + done, s);
        }
        left -= blocks;
    }
    return Block();
}
