// x in workgroup memory as it is, with a gap behind each chunk of 32 that keeps neighbours in different banks.
// needs format: floats, fours_of, scale_of
// needs norm: gained
// needs rows: x4
const BATCH = min(4u, (STAGED * 8u + WG - 1u) / WG);

var<workgroup> staged: array<vec4f, STAGED * 9u>;

// Part p of a chunk of x, a run of W long.
struct Part {
    x: array<vec4f, FOURS>,
    sum: f32,
}

// Gives the sum of x² over what a lane has staged.
fn stage(start: u32, width: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var base = 0u; base < 8u * STAGED; base += WG * BATCH) {
        var values: array<vec4f, BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            let k = 4u * (base + n * WG + lane);
            values[n] = x4(start, select(0u, k, k < width), width);
        }
        for (var n = 0u; n < BATCH; n++) {
            let e = base + n * WG + lane;
            let value = select(vec4f(), values[n], 4u * e < width);
            if NORMED {
                squares += dot(value, value);
            }
            if e < 8u * STAGED {
                staged[e / 8u * 9u + e % 8u] = gained(value, select(0u, 4u * e, 4u * e < width));
            }
        }
    }
    return squares;
}

fn part_of(chunk: u32, p: u32) -> Part {
    var part: Part;
    var sum = vec4f();
    for (var c = 0u; c < FOURS; c++) {
        part.x[c] = staged[chunk * 9u + p * FOURS + c];
        sum += part.x[c];
    }
    part.sum = (sum.x + sum.y) + (sum.z + sum.w);
    return part;
}

fn product(sum: f32, part: Part, raw: Raw, i: u32) -> f32 {
    let scale = scale_of(raw, i);
    var fours = fours_of(raw, i);
    var x = part.x;
    var dots = 0.0;
    for (var c = 0u; c < FOURS; c++) {
        let q = floats(fours[c]);
        dots = fma(q.w, x[c].w, fma(q.z, x[c].z, fma(q.y, x[c].y, fma(q.x, x[c].x, dots))));
    }
    return fma(scale.x, dots, fma(scale.y, part.sum, sum));
}
