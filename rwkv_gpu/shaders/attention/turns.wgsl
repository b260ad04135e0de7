// How far each pair of a head turns, by position.
@group(0) @binding(3) var<storage, read> turns: array<vec2f>;           // (cos, sin) [PAGE + pages, DIMS / 2]

// The turn of a position is that of its page's first, turned by its place in the page: both are known to the last bit.
fn turn_of(position: u32, pair: u32) -> vec2f {
    let a = turns[position % PAGE * (DIMS / 2u) + pair];
    let b = turns[(PAGE + position / PAGE) * (DIMS / 2u) + pair];
    return vec2f(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
