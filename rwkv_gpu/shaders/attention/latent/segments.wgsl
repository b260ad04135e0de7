// Queries of rows that stand in segments: a block is Q heads of neighbouring rows of one sequence.
// needs attention/blocks_of_segments: nth_block
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]

fn block_of(index: u32) -> Block { return nth_block(index, H, Q); }
