// Chunks of a segment: BLOCK tokens each; the last may have fewer. A stack holds the values that relate each chunk to
// the state before it.
const N4 = N / 4u;
const D4 = H * N4;

// Tokens that are computed together.
struct Block {
    row: u32,       // the first token's row of the step
    tokens: u32,
    head: u32,
    alone: bool,    // true if each token is a chunk, because the state after it is stored
}

// The place of a vec4 of a chunk in [T, H, N / 4].
fn token_place(block: Block, token: u32, n: u32) -> u32 {
    return (block.row + token) * D4 + block.head * N4 + n;
}
