// The result of a block of tokens.
// needs sampling/draw: is_set, luck
const LEAST = -3.4e38;
const MOST = 3.4e38;

struct Part {
    most: f32,              // of the adjusted logits; LEAST where none is possible
    sum: f32,               // of exp(x - most)
    raw_most: f32,          // of the logits as they came; MOST where one is NaN or +inf
    raw_sum: f32,           // of exp(x - raw_most)
    token: u32,             // what is drawn from the block
    listed: atomic<u32>,    // of the first block of a row: the tokens of the row that may be kept
    x: f32,                 // its logit, adjusted
    free: u32,
}

// The winner of some tokens: the least of those whose key is greatest.
struct Best {
    key: f32,
    token: u32,
    x: f32,                 // as that of a part
}

fn better(one: Best, other: Best) -> Best {
    if other.key > one.key || (other.key == one.key && other.token < one.token) {
        return other;
    }
    return one;
}

fn key_of(draw: Draw, keys: vec2u, token: u32, x: f32, most: f32) -> f32 {
    if is_set(draw, GREEDY) {
        return x;
    }
    return (x - most) * draw.coldness + luck(keys, token);
}
