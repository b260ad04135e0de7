// TB rows of x in workgroup memory as integers of BYTES signed bytes, by chunks of 32 that share a scale, STAGED of a row
// at a time. A chunk is two vec4s for each byte of an integer, the lowest first, with its scale and the sum of each run
// beside them; those of neighbouring chunks lie side by side.
const WHOLE = PIECED == 0u;             // whether all of a row is staged at once
const LOADS = (STAGED * 8u + WG - 1u) / WG;     // vec4s of a row of x that a lane stages
const BATCH = min(LOADS, max(1u, 4u / TB));

const_assert WG % 8u == 0u;

var<workgroup> staged: array<vec4u, TB * 2u * BYTES * STAGED>;
var<workgroup> said: array<f32, TB * (1u + PARTS) * STAGED>;
var<private> squares: array<f32, TB>;

// Stages TB rows of x from a chunk on. Eight lanes have a chunk.
fn stage(matrix: Matrix, t0: u32, piece: u32, lane: u32) {
    if NORMED && piece == 0u {
        squares = array<f32, TB>();
    }
    for (var base = 0u; base < LOADS; base += BATCH) {
        var values: array<vec4f, TB * BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            let k = 32u * piece + 4u * ((base + n) * WG + lane);
            for (var t = 0u; t < TB; t++) {
                let start = matrix.x + min(t0 + t, table.rows - 1u) * matrix.k;
                values[n * TB + t] = x4(start, select(0u, k, k < matrix.k), matrix.k);
            }
        }
        for (var n = 0u; n < BATCH; n++) {
            let e = (base + n) * WG + lane;
            let k = 32u * piece + 4u * e;
            let valid = k < matrix.k && e < 8u * STAGED;
            for (var t = 0u; t < TB; t++) {
                let value = select(vec4f(), values[n * TB + t], valid);
                if NORMED {
                    squares[t] += dot(value, value);
                }
                put(gained(value, select(0u, k, k < matrix.k)), t, e);
            }
        }
    }
    for (var t = 0u; t < TB; t++) {
        lay_squares(squares[t], t, lane);
    }
}

fn put(values: vec4f, t: u32, e: u32) {
    let most = most_of(values);
    var bits = rounded(values, most);
    let sum = reach_add(sum_of_four(bits), FOURS);
    if e < 8u * STAGED {
        let chunk = e / 8u;
        for (var b = 0u; b < BYTES; b++) {
            staged[place(t, chunk, b, e / 4u % 2u)][e % 4u] = bytes_of(bits);
            bits = rest_of(bits);
        }
        if e % 8u == 0u {
            said[told(t, chunk, 0u)] = most / LARGEST;
        }
        if e % FOURS == 0u {
            said[told(t, chunk, 1u + e % 8u / FOURS)] = most / LARGEST * sum;
        }
    }
}

// Where half h of byte b of a chunk lies, and what is said of it.
fn place(t: u32, chunk: u32, b: u32, h: u32) -> u32 { return ((t * BYTES + b) * 2u + h) * STAGED + chunk; }
fn told(t: u32, chunk: u32, which: u32) -> u32 { return (t * (1u + PARTS) + which) * STAGED + chunk; }

fn part_of(_matrix: Matrix, _t0: u32, t: u32, piece: u32, after: u32, p: u32) -> Part {
    let chunk = after - piece;
    var part: Part;
    part.scale = said[told(t, chunk, 0u)];
    part.sum = said[told(t, chunk, 1u + p)];
    part.low = bytes(t, chunk, 0u, p);
    if BYTES == 2u {
        part.high = bytes(t, chunk, 1u, p);
    }
    return part;
}

fn bytes(t: u32, chunk: u32, b: u32, p: u32) -> Bytes {
    var found: Bytes;
    found[0] = staged[place(t, chunk, b, p)];
    if HALVES == 2u {
        found[HALVES - 1u] = staged[place(t, chunk, b, 1u)];
    }
    return found;
}
