// Chunks of a segment: BLOCK tokens each, the last maybe fewer. A stack holds the values that relate each chunk to the state before it.
const N4 = N / 4u;
const D4 = H * N4;
const P4 = P / 4u;                  // of a value: S has P rows of N columns
const V4 = H * P4;

// Tokens that are computed together.
struct Block {
    row: u32,       // of the step, of the first token
    tokens: u32,
    head: u32,
    alone: bool,    // whether each token is a chunk, because the state after it is stored
}

// Where a vec4 of a chunk lies in [T, H, N / 4].
fn key_place(block: Block, token: u32, n: u32) -> u32 {
    return (block.row + token) * D4 + block.head * N4 + n;
}

// Where a vec4 of a chunk lies in [T, H, P / 4].
fn value_place(block: Block, token: u32, n: u32) -> u32 {
    return (block.row + token) * V4 + block.head * P4 + n;
}
