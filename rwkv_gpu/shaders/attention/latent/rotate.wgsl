// Dims of a head rotated to their position.
// needs rope: is_second, pair_of, partner_of
@group(0) @binding(3) var<storage, read> turns: array<vec2f>;           // (cos, sin) [PAGE + pages, DIMS / 2]

fn partner(d: u32) -> u32 { return partner_of(d); }

fn rotated(position: u32, d: u32, x: f32, other: f32) -> f32 {
    let turn = turn_of(position, pair_of(d));
    return x * turn.x + select(-other, other, is_second(d)) * turn.y;
}

// The turn of a position is that of its page's first, turned by its place in the page: both are known to the last bit.
fn turn_of(position: u32, pair: u32) -> vec2f {
    let a = turns[position % PAGE * (DIMS / 2u) + pair];
    let b = turns[(PAGE + position / PAGE) * (DIMS / 2u) + pair];
    return vec2f(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
