// The result of a block of tokens.
// needs sampling/draw: is_set, gumbel
const LEAST = -3.4e38;
const MOST = 3.4e38;

struct Part {
    most: f32,              // the maximum of the adjusted logits; LEAST if no token is possible
    sum: f32,               // the sum of exp(x - most)
    raw_most: f32,          // the maximum of the unchanged logits; MOST if one is NaN or +inf
    raw_sum: f32,           // the sum of exp(x - raw_most)
    token: u32,             // the token drawn from the block
    listed: atomic<u32>,    // in the first block of a row: the number of tokens of the row that may be kept
    x: f32,                 // the adjusted logit of that token
    free: u32,
}

// The winner of several tokens: the smallest id among those with the greatest key.
struct Best {
    key: f32,
    token: u32,
    x: f32,                 // its adjusted logit
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
    return (x - most) * draw.coldness + gumbel(keys, token);
}
