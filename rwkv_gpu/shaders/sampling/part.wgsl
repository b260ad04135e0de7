// What is known of a block of tokens. `Listed` is a u32, atomic where blocks count together.
struct Part {
    most: f32,          // of the adjusted logits; LEAST where none is possible
    sum: f32,           // of exp(x - most)
    raw_most: f32,      // of the logits as they came; MOST where one is NaN or +inf
    raw_sum: f32,       // of exp(x - raw_most)
    token: u32,         // what is drawn from the block
    listed: Listed,     // of the first block of a row: the tokens of the row that may be kept
    free0: u32,
    free1: u32,
}
