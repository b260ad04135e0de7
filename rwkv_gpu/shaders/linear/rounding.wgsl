// x as float16 with a power of two for each row, for matrix units       one workgroup per row t of each x
//
// A norm can be fused.
// needs lanes: reduce_add, reduce_max
// needs lib/matrix_units/rounded: exponent_of, halves_of, halves_of_exponent, place_of_four, place_of_exponent
// needs norm: gained, root; rows: x4
@group(0) @binding(3) var<storage, read_write> rounded: array<vec2u>;    // for each x: [T, K / 4] vectors of float16, then [T] exponents
@group(0) @binding(6) var<uniform> table: array<vec4u, XS>;     // for each x: its start in floats, its width, and the start of its output

const PADDED = 1u;
const BESIDE = XS * ROUNDED_ROWS;
// ROWS_EACH: rows of x per row of the step; more than one for experts.

fn extra_work(group: u32, lane: u32) {
    let t = group % ROUNDED_ROWS;
    if t >= step.rows * ROWS_EACH || group / ROUNDED_ROWS >= XS {
        return;
    }
    let which = table[group / ROUNDED_ROWS];
    let width = which.y;
    let start = which.x + t * width;
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
    let exponent = exponent_of(reduce_max(most, lane) * norm);
    let scale = norm * ldexp(1.0, -exponent);
    for (var e = lane; e < padded; e += WG) {
        let values = gained(x4(start, 4u * e, width), 4u * min(e, fours - 1u)) * scale;
        rounded[which.z + place_of_four(t, e, padded)] = halves_of(values);
    }
    if lane == 0u {
        rounded[which.z + place_of_exponent(t, padded)] = halves_of_exponent(exponent);
    }
}
