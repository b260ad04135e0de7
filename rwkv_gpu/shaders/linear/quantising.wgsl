// x as integers with a scale for 32 columns, for gemm_int8 and skinny_gemm       one workgroup per row t of each x
//
// A fused norm multiplies x by its gain before rounding, and the scales of the integers by its root.
// needs lanes: reduce_add; lib/store_quantised: store_quantised; norm: gained, root; rows: x4
@group(0) @binding(3) var<storage, read_write> quantised: array<u32>;
@group(0) @binding(6) var<uniform> table: array<vec4u, XS>;     // start of each x in floats, its width, start of its y

const PADDED = 0u;
const BESIDE = XS * QUANTISED_ROWS;

const_assert WG % 8u == 0u;

fn extra_work(group: u32, lane: u32) {
    let t = group % QUANTISED_ROWS;
    if t >= step.rows || group / QUANTISED_ROWS >= XS {
        return;
    }
    let which = table[group / QUANTISED_ROWS];
    let width = which.y;
    let start = which.x + t * width;
    let fours = width / 4u;
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
        store_quantised(values, which.z, t, e, width / 32u, norm, base + lane < fours);
    }
}
