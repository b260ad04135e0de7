// Queries of rows that stand in segments: a block is Q heads of neighbouring rows of one sequence, and sees its context alone.
// needs attention/blocks_of_segments: nth_block
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]

struct Part {
    block: Block,
    run: u32,
}

fn part_of(group: u32, _lane: u32) -> Part { return Part(nth_block(group, H, Q), 0u); }
