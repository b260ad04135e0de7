// Reading, copying and quantising of rows of x in skinny_gemm.

//# copy_x: TB rows of integers of x (linear/skinny/quantised_x) copied into workgroup memory.
// needs linear/skinny/shared_x: scale_at
const WHOLE = PIECED == 0u;             // true if a whole row is staged at once
const COPIES = (TB * VECS * STAGED + WG - 1u) / WG;     // copies by one lane

// Copies STAGED chunks of each row, beginning with chunk `piece`. Beyond the end of a row, scales are zero.
fn stage(matrix: Matrix, t0: u32, piece: u32, lane: u32) {
    let chunks = matrix.k / 32u;
    var values: array<vec4u, COPIES>;
    for (var n = 0u; n < COPIES; n++) {
        let e = min(n * WG + lane, TB * VECS * STAGED - 1u);
        let row = min(t0 + e / (VECS * STAGED), table.rows - 1u) * VECS + e / STAGED % VECS;
        values[n] = x[matrix.x + row * chunks + min(piece + e % STAGED, chunks - 1u)];
    }
    for (var n = 0u; n < COPIES; n++) {
        let e = n * WG + lane;
        let t = e / (VECS * STAGED);
        let vec = e / STAGED % VECS;
        let chunk = e % STAGED;
        if e < TB * VECS * STAGED {
            if vec < 2u * BYTES {
                staged[(t * 2u * BYTES + vec) * STAGED + chunk] = values[n];
            } else {
                let all = bitcast<vec4f>(values[n]);
                let valid = piece + chunk < chunks;
                scales[scale_at(t, chunk, 0u)] = select(0.0, all.x, valid);
                scales[scale_at(t, chunk, 1u)] = select(0.0, select(all.y, all.w, PARTS == 1u), valid);
                if PARTS == 2u {
                    scales[scale_at(t, chunk, PARTS)] = select(0.0, all.z, valid);
                }
            }
        }
    }
}

//# quantise_x
// TB rows of x in workgroup memory as integers of BYTES signed bytes, by chunks of 32 that share a scale, STAGED of a row
// at a time. A chunk is two vec4s for each byte of an integer, the lowest first, followed by its scale and the sum of each
// run. Neighbouring chunks are adjacent.
// needs lib/quantise: bits_of, bytes_of, most_of, rest_of, sum_of_four, words_of_four; lib/sum/squares: add_squares
// needs linear/skinny/shared_x: place, scale_at; norm: gained; rows: x4; sum: group_sum
const WHOLE = PIECED == 0u;             // true if a whole row is staged at once
const LOADS = (STAGED * 8u + WG - 1u) / WG;     // vec4s of a row of x that a lane stages
const EVEN = LOADS * WG == STAGED * 8u;         // true if all lanes stage the same number
const BATCH = min(LOADS, max(1u, 4u / TB));

const_assert WG % 8u == 0u;

var<private> squares: array<f32, TB>;

// Stages TB rows of x from a chunk on. Eight lanes have a chunk.
fn stage(matrix: Matrix, t0: u32, piece: u32, lane: u32) {
    if NORMED && piece == 0u {
        squares = array<f32, TB>();
    }
    for (var base = 0u; base < LOADS; base += BATCH) {
        var values: array<vec4f, TB * BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            let e = (base + n) * WG + lane;
            let k = 32u * piece + 4u * e;
            let own = k < matrix.k && (EVEN || e < STAGED * 8u);    // other lanes stage the rest, and may store it
            for (var t = 0u; t < TB; t++) {
                let start = matrix.x + min(t0 + t, table.rows - 1u) * matrix.k;
                values[n * TB + t] = x4(start, select(0u, k, own), matrix.k);
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
        add_squares(squares[t], t, lane);
    }
}

fn put(values: vec4f, t: u32, e: u32) {
    let most = most_of(values);
    let bits = bits_of(values, most);
    let sum = group_sum(sum_of_four(bits), FOURS);
    let chunk = e / 8u;
    let words = words_of_four(bytes_of(bits), bytes_of(rest_of(bits)), e);
    if e < 8u * STAGED && e % 4u < BYTES {
        staged[place(t, chunk, e % 4u, e / 4u % 2u)] = words;
    }
    if e < 8u * STAGED {
        if e % 8u == 0u {
            scales[scale_at(t, chunk, 0u)] = most / LARGEST;
        }
        if e % FOURS == 0u {
            scales[scale_at(t, chunk, 1u + e % 8u / FOURS)] = most / LARGEST * sum;
        }
    }
}

//# quantised_x
// Rows of x that are integers already (`linear/quantise_rows`): [T, VECS, K / 32] of each matrix. Quantisation has applied the norm, if there is one.
@group(0) @binding(2) var<storage, read> x: array<vec4u>;

const VECS = 2u * BYTES + 1u;           // vec4s of a chunk: two for each byte of an integer, then (scale, sums)
const NORMED = false;

fn find_statistics(_lane: u32) {}
fn root(_squares: f32, _width: u32) -> f32 { return 1.0; }
fn squares_of(_t: u32) -> f32 { return 0.0; }

//# read_x: Integers of x (linear/skinny/quantised_x), read directly from memory.
const WHOLE = false;                    // no row is staged

fn stage(_matrix: Matrix, _t0: u32, _piece: u32, _lane: u32) {}

// A part of a chunk; zeros beyond the end of a row.
fn part_of(matrix: Matrix, t0: u32, t: u32, _piece: u32, chunk: u32, p: u32) -> Part {
    let chunks = matrix.k / 32u;
    let whole = chunks % (LANES_PER_ROW * PREFETCH) == 0u;
    let at = matrix.x + min(t0 + t, table.rows - 1u) * VECS * chunks + select(min(chunk, chunks - 1u), chunk, whole);
    var part: Part;
    let scales = bitcast<vec4f>(x[at + 2u * BYTES * chunks]) * select(f32(chunk < chunks), 1.0, whole);
    part.scale = scales.x;
    part.sum = scales[select(1u + p, 3u, PARTS == 1u)];
    part.low = bytes(at, chunks, p);
    if BYTES == 2u {
        part.high = bytes(at + 2u * chunks, chunks, p);
    }
    return part;
}

fn bytes(at: u32, chunks: u32, p: u32) -> Bytes {
    var found: Bytes;
    found[0] = x[at + p * chunks];
    if HALVES == 2u {
        found[HALVES - 1u] = x[at + chunks];
    }
    return found;
}

//# shared_x
// TB rows of x in workgroup memory as integers of BYTES signed bytes, STAGED chunks of 32 columns of a row at a time: two vec4s
// for each byte, the lowest first, a scale, and the sum of each run. Neighbouring chunks are adjacent.
var<workgroup> staged: array<vec4u, TB * 2u * BYTES * STAGED>;
var<workgroup> scales: array<f32, TB * (1u + PARTS) * STAGED>;

// The place of half h of byte b of a chunk, and that of its scale and sums.
fn place(t: u32, chunk: u32, b: u32, h: u32) -> u32 { return ((t * BYTES + b) * 2u + h) * STAGED + chunk; }
fn scale_at(t: u32, chunk: u32, which: u32) -> u32 { return (t * (1u + PARTS) + which) * STAGED + chunk; }

fn part_of(_matrix: Matrix, _t0: u32, t: u32, piece: u32, after: u32, p: u32) -> Part {
    let chunk = after - piece;
    var part: Part;
    part.scale = scales[scale_at(t, chunk, 0u)];
    part.sum = scales[scale_at(t, chunk, 1u + p)];
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
