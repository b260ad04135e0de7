// K[entry] = x[t], the last DIMS rotated by the entry's first position, for rows that complete an entry      one lane per 8 numbers
// needs attention/eight: Eight; latent write: put8; rotation: partner, rotated
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, N]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages
@group(0) @binding(5) var<storage, read_write> keys: array<vec4u>;      // [pages, PAGE / PER_ROW, N]

const FIRST = N - DIMS;
const_assert N % 8u == 0u;

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let t = i / (N / 8u);
    if t >= step.rows {
        return;
    }
    let place = places[t];
    if (place.x + 1u) % ENTRY != 0u {
        return;
    }
    var numbers: array<f32, 8>;
    for (var j = 0u; j < 8u; j++) {
        let d = i % (N / 8u) * 8u + j;
        numbers[j] = x[t * N + d];
        if d >= FIRST {
            numbers[j] = rotated(place.x + 1u - ENTRY, d - FIRST, numbers[j], x[t * N + FIRST + partner(d - FIRST)]);
        }
    }
    let row = place.y / PAGE * (PAGE / PER_ROW) + place.y % PAGE / ENTRY;
    let low = vec4f(numbers[0], numbers[1], numbers[2], numbers[3]);
    put8(row * (N / 8u) + i % (N / 8u), Eight(low, vec4f(numbers[4], numbers[5], numbers[6], numbers[7])));
}
