// The sampling parameters of a row, and the random term of a token in a draw: -log(E), with E exponential, from a hash.
struct Draw {
    slot: u32,
    flags: u32,
    seed_low: u32,
    seed_high: u32,
    number: u32,        // the number of earlier draws of the sequence
    tokens: u32,        // the number of tokens of the sequence
    coldness: f32,      // 1 / temperature
    top_k: u32,
    top_p: f32,
    min_p: f32,         // the logarithm of min-p
    repetition: f32,
    presence: f32,
    frequency: f32,
    log2_decay: f32,    // of the penalties
    window: u32,        // tokens that penalties look back on; 0 is all
    free: u32,
}

fn is_set(draw: Draw, flag: u32) -> bool { return (draw.flags & flag) != 0u; }

// A bijection of 32 bits in which each output bit depends on every input bit.
fn stir(x0: u32) -> u32 {
    let x1 = (x0 ^ (x0 >> 16u)) * 0x7feb352du;
    let x2 = (x1 ^ (x1 >> 15u)) * 0x846ca68bu;
    return x2 ^ (x2 >> 16u);
}

// The part of the hash that all tokens of a draw share.
fn draw_keys(draw: Draw) -> vec2u {
    let low = stir(draw.seed_low + 0x9e3779b9u);
    let first = stir(draw.number ^ stir(draw.seed_high ^ low));
    return vec2u(first, stir(first + low));
}

// Small v by the series of -log(1 - v), as 1 - v would round away.
fn gumbel(keys: vec2u, token: u32) -> f32 {
    let h = stir(stir(token ^ keys.x) + keys.y);
    let v = (f32(h) + 0.5) * 0x1p-32f;
    let few = v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * (0.25 + v * 0.2))));
    let rest = -log((f32(~h) + 0.5) * 0x1p-32f);
    return -log(select(rest, few, v < 0.0625));
}
