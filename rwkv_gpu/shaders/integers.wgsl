// x as integers, 32 columns to a scale: what linear_dot and linear_few multiply      one workgroup per row t of each x
//
// A norm on the way scales what integers mean, and its gain comes before.
@group(0) @binding(3) var<storage, read_write> y: array<u32>;   // [K / 32, PLANES, ROWS] vec4s of each x; BY_ROWS, [ROWS, PLANES, K / 32]
@group(0) @binding(6) var<uniform> table: array<vec4u, XS>;     // where each x starts, in floats, its width, where y does

const PLANES = 2u * BYTES + 1u;         // two for each byte of an integer, the lowest first, then (scale, sums)
const PADDED = 0u;

const_assert WG % 8u == 0u;

fn run(group: u32, lane: u32) {
    let t = group % ROWS;
    if t >= step.rows || group / ROWS >= XS {
        return;
    }
    let which = table[group / ROWS];
    let width = which.y;
    let start = which.x + t * width;
    let fours = width / 4u;
    let chunks = width / 32u;
    let far = select(ROWS, chunks, BY_ROWS == 1u);      // between planes of a chunk
    var norm = 1.0;
    if NORMED {
        var squares = 0.0;
        for (var e = lane; e < fours; e += WG) {
            let values = x4(start, 4u * e, width);
            squares += dot(values, values);
        }
        norm = root(reduce_add(squares, lane), width);
    }
    for (var base = 0u; base < fours; base += WG) {
        let e = min(base + lane, fours - 1u);
        let values = gained(x4(start, 4u * e, width), 4u * e);
        let most = most_of(values);
        var bits = rounded(values, most);
        let sum = reach_add(sum_of_four(bits), 4u);
        let other = subgroupShuffleXor(sum, 4u);
        if base + lane < fours {
            let chunk = which.z + select(e / 8u * PLANES * ROWS + t, t * PLANES * chunks + e / 8u, BY_ROWS == 1u);
            for (var b = 0u; b < BYTES; b++) {
                y[4u * (chunk + (2u * b + e / 4u % 2u) * far) + e % 4u] = bytes_of(bits);
                bits = rest_of(bits);
            }
            if e % 8u == 0u {
                let scale = most / LARGEST * norm;
                let at = 4u * (chunk + 2u * BYTES * far);
                y[at] = bitcast<u32>(scale);
                y[at + 1u] = bitcast<u32>(scale * sum);
                y[at + 2u] = bitcast<u32>(scale * other);
                y[at + 3u] = bitcast<u32>(scale * (sum + other));
            }
        }
    }
}
