// K[place] = rotate(k[t]), r[t, h] = rotate(q[t, h]), DIMS of each from FIRST on      one workgroup per row t
//
// A key is rotated by the position BACK before its own, the first of its block.
// needs attention/eight: Eight; latent write: put8; rotation: partner, rotated
@group(0) @binding(1) var<storage, read> k: array<f32>;                 // [T, N]
@group(0) @binding(2) var<storage, read> q: array<f32>;                 // [T, H, N]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)
@group(0) @binding(5) var<storage, read_write> keys: array<vec4u>;      // [pages, PAGE, N]
@group(0) @binding(6) var<storage, read_write> r: array<f32>;           // [T, H, N]

const_assert N % 8u == 0u;
const_assert FIRST + DIMS <= N;

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let place = places[t];
    for (var i = lane; i < N / 8u; i += WG) {
        var x: array<f32, 8>;
        for (var j = 0u; j < 8u; j++) {
            let d = 8u * i + j;
            x[j] = k[t * N + d];
            if d >= FIRST && d - FIRST < DIMS {
                x[j] = rotated(max(place.x, BACK) - BACK, d - FIRST, x[j], k[t * N + FIRST + partner(d - FIRST)]);
            }
        }
        let low = vec4f(x[0], x[1], x[2], x[3]);
        put8(place.y * (N / 8u) + i, Eight(low, vec4f(x[4], x[5], x[6], x[7])));
    }
    for (var i = lane; i < H * N; i += WG) {
        let head = t * H * N + i / N * N;
        let d = i % N;
        var y = q[head + d];
        if d >= FIRST && d - FIRST < DIMS {
            y = rotated(place.x, d - FIRST, y, q[head + FIRST + partner(d - FIRST)]);
        }
        r[head + d] = y;
    }
}
