// x as float16 with a power of two for each row: what matrix units multiply      one workgroup per row t of each x
//
// The power takes the largest of a row to 2^14 or just below, so that nothing overflows, and what is lost below is less than
// 2^-38 of it. Rows are normed on the way. Of each four columns, the second and the third change places: decoding bytes
// yields them so. They lie in rows, or in the fragments that matrix units load: of S columns of S rows each, by columns.
// needs lanes: reduce_add, reduce_max
// needs norm: gained, root
// needs rows: x4
@group(0) @binding(3) var<storage, read_write> rounded: array<vec2u>;    // of each x: [T, K / 4] of float16, then [T] exponents
@group(0) @binding(6) var<uniform> table: array<vec4u, XS>;     // where each x starts, in floats, its width, where it is put, the gap between its rows

const PADDED = 1u;
const LARGEST = 14;
// ROWS_EACH: rows of x for a row of the step, as experts have.
const FRAGMENTS = (ROUNDED_ROWS + S - 1u) / S;  // of S columns

fn run(group: u32, lane: u32) {
    let t = group % ROUNDED_ROWS;
    if t >= step.rows * ROWS_EACH || group / ROUNDED_ROWS >= XS {
        return;
    }
    let which = table[group / ROUNDED_ROWS];
    let width = which.y;
    let start = which.x + t * (width + which.w);
    let fours = (width + 3u) / 4u;
    let padded = (width + 63u) / 64u * 16u;
    var most = 0.0;
    var squares = 0.0;
    for (var e = lane; e < fours; e += WG) {
        let values = x4(start, 4u * e, width);
        let sizes = abs(gained(values, 4u * e));
        most = max(most, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
        squares += dot(values, values);
    }
    var norm = 1.0;
    if NORMED {
        norm = root(reduce_add(squares, lane), width);
    }
    let exponent = frexp(max(reduce_max(most, lane) * norm, 1e-30)).exp - LARGEST;
    let scale = norm * ldexp(1.0, -exponent);
    for (var e = lane; e < padded; e += WG) {
        let values = gained(x4(start, 4u * e, width), 4u * min(e, fours - 1u)) * scale;
        rounded[which.z + place_of(t, e, padded)] = vec2u(pack2x16float(values.xz), pack2x16float(values.yw));
    }
    if lane == 0u {
        rounded[which.z + select(FRAGMENTS * S, ROUNDED_ROWS, BY_ROWS == 1u) * padded + t] = vec2u(pack2x16float(vec2f(f32(exponent), 0.0)), 0u);
    }
}

// Four e of row t.
fn place_of(t: u32, e: u32, padded: u32) -> u32 {
    let fragment = e / (S / 4u) * FRAGMENTS + t / S;
    return select((fragment * S + t % S) * (S / 4u) + e % (S / 4u), t * padded + e, BY_ROWS == 1u);
}
