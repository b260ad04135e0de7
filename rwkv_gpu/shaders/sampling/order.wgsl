// Logits as whole numbers of the same order.
const LOWEST = -3.3e38;         // of what is possible
const GUESS = 12.0;             // what is less likely by so many nats seldom stays

fn order(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(order: u32) -> f32 {
    return bitcast<f32>(select(~order, order & 0x7fffffffu, order >> 31u == 1u));
}
