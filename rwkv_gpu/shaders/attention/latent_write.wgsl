// K[place] = [norm(c[t]) | rotate(p[t])], r[t, h] = rotate(the last R of q_rope[t, h])      one workgroup per row t
// needs attention/eight: Eight; lanes: reduce_add; latent write: put8; rotation: partner, rotated
@group(0) @binding(1) var<storage, read> z: array<f32>;                 // [T, WIDTH] = [c | p]
@group(0) @binding(2) var<storage, read> gain: array<f32>;              // [N]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)
@group(0) @binding(5) var<storage, read_write> keys: array<vec4u>;      // [pages, PAGE, WIDTH]
@group(0) @binding(6) var<storage, read> q_rope: array<f32>;            // [T, H, S]
@group(0) @binding(7) var<storage, read_write> r: array<f32>;           // [T, H, R]

const R = WIDTH - N;
const EACH = max(R, 1u);
const_assert N % 8u == 0u;
const_assert R % 8u == 0u;

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let place = places[t];
    let start = t * WIDTH;
    var squares = 0.0;
    for (var d = lane; d < N; d += WG) {
        squares += z[start + d] * z[start + d];
    }
    let scale = inverseSqrt(reduce_add(squares, lane) / f32(N) + EPS);
    for (var i = lane; i < WIDTH / 8u; i += WG) {
        var x: array<f32, 8>;
        for (var j = 0u; j < 8u; j++) {
            let d = 8u * i + j;
            if d < N {
                x[j] = z[start + d] * scale * gain[d];
            } else {
                x[j] = rotated(place.x, d - N, z[start + d], z[start + N + partner(d - N)]);
            }
        }
        let low = vec4f(x[0], x[1], x[2], x[3]);
        put8(place.y * (WIDTH / 8u) + i, Eight(low, vec4f(x[4], x[5], x[6], x[7])));
    }
    for (var i = lane; i < H * R; i += WG) {
        let head = (t * H + i / EACH) * S + S - R;
        let d = i % EACH;
        r[t * H * R + i] = rotated(place.x, d, q_rope[head + d], q_rope[head + partner(d)]);
    }
}
