// y[t, h] = x[t, h], the last DIMS rotated by the position of the row (SIGN 1), or back by it (-1)      one lane per element
// needs rotation: partner, rotated
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, H, N]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of position, row of all pages
@group(0) @binding(5) var<storage, read_write> y: array<f32>;           // [T, H, N]

const FIRST = N - DIMS;

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * H * N {
        return;
    }
    let d = i % N;
    var value = x[i];
    if d >= FIRST {
        value = rotated(places[i / (H * N)].x, d - FIRST, value, SIGN * x[i - d + FIRST + partner(d - FIRST)]);
    }
    y[i] = value;
}
