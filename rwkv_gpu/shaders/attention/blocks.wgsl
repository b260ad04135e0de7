// Rows of a step in blocks of up to ROWS, each of one sequence.
// needs attention/blocks_of_segments: nth_block
fn block_of(index: u32) -> Block { return nth_block(index, 1u, ROWS); }
