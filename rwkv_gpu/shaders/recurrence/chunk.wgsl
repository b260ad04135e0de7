// Chunks of a segment: BLOCK tokens, the last maybe fewer. What each needs of the state before it lies in a stack.
const N4 = N / 4u;
const D4 = H * N4;
const ITEMS = BLOCK * N4;           // vec4s of a vector in a chunk

// Tokens that are computed together.
struct Block {
    row: u32,       // of the step, of the first token
    tokens: u32,
    head: u32,
}

// Where a vec4 of a chunk lies in [T, H, N / 4].
fn item_place(block: Block, i: u32) -> u32 {
    return (block.row + i / N4) * D4 + block.head * N4 + i % N4;
}
