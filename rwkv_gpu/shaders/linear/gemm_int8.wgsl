// y[t, m] = out(W[m, :] · x[t, :])      as products of integers: a workgroup for R rows m and TB rows t
//
// x is already quantised (`linear/quantise_rows`), and W is stored as small integers. PREFETCH chunks of 32 columns at
// a time are in workgroup memory as bytes, two vec4s per row, so that one instruction computes four products. Sums of
// a run are integers, which are then multiplied by scales. The next chunks are prefetched.
// needs format: packed_of, run_raw, scale_of; lib/dot16: dot16; linear/table: store; table: matrix_of, rows_now
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4u>;       // [K / 32, PLANES, T] of each matrix
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const PLANES = 2u * BYTES + 1u;         // vec4s of a chunk of x: two for each byte of an integer, then (scale, sums)
const DOWN = WG / LANES_ALONG_M;                 // lanes along t
const NEAR = min(4u, DOWN);
const W_RUNS = R * PARTS * PREFETCH;
const X_VECS = TB * PLANES * PREFETCH;
const RUNS = (W_RUNS + WG - 1u) / WG;   // runs that a lane stages
const VECS = (X_VECS + WG - 1u) / WG;
const TALL = R == 8u * LANES_ALONG_M;            // true if a lane has 8 rows of W, otherwise 4
const WIDE = TB == 8u * DOWN;           // true if a lane has 8 rows of x

const_assert BYTES == 1u || BYTES == 2u;
const_assert TALL || R == 4u * LANES_ALONG_M;
const_assert WIDE || TB == 4u * DOWN;
const_assert LANES_ALONG_M % 8u == 0u;

var<workgroup> w_bytes: array<vec4u, PREFETCH * 2u * R>;
var<workgroup> w_scales: array<vec2f, PREFETCH * PARTS * R>;
var<workgroup> x_tile: array<vec4u, X_VECS>;

// A row of W in a chunk, and a row of x.
struct Row {
    low: vec4u,
    high: vec4u,
    scale: vec4f,       // (d, m) of the run, or of both runs
}

struct Rows {
    a: Row,
    b: Row,
    c: Row,
    d: Row,
}

struct Integers {
    low: vec4u,         // the lowest bytes of the first half and of the second
    high: vec4u,
    upper_low: vec4u,   // the bytes above them
    upper_high: vec4u,
    scale: vec4f,       // the scale, and the scaled sums of the first half, of the second and of both
}

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks % table.blocks;
    part = group / table.t_blocks / table.blocks;
    if t0 >= rows_now() || part >= table.parts {
        return;
    }
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    let chunks = matrix.k / 32u;
    let start = part * chunks / table.parts;
    let end = (part + 1u) * chunks / table.parts;
    // 8 x 4 neighbouring lanes, whose reads of workgroup memory hit different banks.
    let m = lane % 8u + lane / (8u * NEAR) % (LANES_ALONG_M / 8u) * 8u;
    let t = lane / 8u % NEAR + lane / (NEAR * LANES_ALONG_M) * NEAR;
    var sums0 = mat2x4f();              // the sums of one row of x with 4 rows of W, and with 4 more
    var sums1 = mat2x4f();
    var sums2 = mat2x4f();
    var sums3 = mat2x4f();
    var sums4 = mat2x4f();
    var sums5 = mat2x4f();
    var sums6 = mat2x4f();
    var sums7 = mat2x4f();
    var raw = raws(matrix, row0, start, chunks, lane);
    var quantised = vecs(matrix, t0, start, chunks, lane);
    for (var chunk = start; chunk < end; chunk += PREFETCH) {
        if chunk > start {
            workgroupBarrier();         // all lanes have read the stored values
        }
        for (var n = 0u; n < RUNS; n++) {
            let p = n * WG + lane;
            if p < W_RUNS {
                put_down(raw[n], run_of(matrix, row0, chunk, chunks, p), p, chunk + p / (R * PARTS) < end);
            }
        }
        for (var n = 0u; n < VECS; n++) {
            let p = n * WG + lane;
            if p < X_VECS {
                x_tile[p] = quantised[n];
            }
        }
        workgroupBarrier();
        if chunk + PREFETCH < end {        // starts to load the next chunk
            raw = raws(matrix, row0, chunk + PREFETCH, chunks, lane);
            quantised = vecs(matrix, t0, chunk + PREFETCH, chunks, lane);
        }
        for (var c = 0u; c < PREFETCH; c++) {
            let rows = rows_of(c, m);
            var more: Rows;
            if TALL {
                more = rows_of(c, m + 4u * LANES_ALONG_M);
            }
            sums0 = products(sums0, rows, more, c, t);
            sums1 = products(sums1, rows, more, c, t + DOWN);
            sums2 = products(sums2, rows, more, c, t + 2u * DOWN);
            sums3 = products(sums3, rows, more, c, t + 3u * DOWN);
            if WIDE {
                sums4 = products(sums4, rows, more, c, t + 4u * DOWN);
                sums5 = products(sums5, rows, more, c, t + 5u * DOWN);
                sums6 = products(sums6, rows, more, c, t + 6u * DOWN);
                sums7 = products(sums7, rows, more, c, t + 7u * DOWN);
            }
        }
    }
    put(matrix, row0 + 4u * m, t0 + t, sums0);
    put(matrix, row0 + 4u * m, t0 + t + DOWN, sums1);
    put(matrix, row0 + 4u * m, t0 + t + 2u * DOWN, sums2);
    put(matrix, row0 + 4u * m, t0 + t + 3u * DOWN, sums3);
    if WIDE {
        put(matrix, row0 + 4u * m, t0 + t + 4u * DOWN, sums4);
        put(matrix, row0 + 4u * m, t0 + t + 5u * DOWN, sums5);
        put(matrix, row0 + 4u * m, t0 + t + 6u * DOWN, sums6);
        put(matrix, row0 + 4u * m, t0 + t + 7u * DOWN, sums7);
    }
}

// The row of W in a slot. Four neighbouring rows are LANES_ALONG_M slots apart, so that lanes read adjacent memory.
fn row_in(slot: u32) -> u32 { return slot % LANES_ALONG_M * 4u + slot / LANES_ALONG_M % 4u + slot / (4u * LANES_ALONG_M) * 4u * LANES_ALONG_M; }

// The p-th run that is staged from a chunk on.
fn run_of(matrix: Matrix, row0: u32, chunk: u32, chunks: u32, p: u32) -> u32 {
    let row = min(row0 + row_in(p % R), matrix.rows - 1u);
    return (row * chunks + min(chunk + p / (R * PARTS), chunks - 1u)) * PARTS + p / R % PARTS;
}

fn raws(matrix: Matrix, row0: u32, chunk: u32, chunks: u32, lane: u32) -> array<Raw, RUNS> {
    var raw: array<Raw, RUNS>;
    for (var n = 0u; n < RUNS; n++) {
        raw[n] = run_raw(run_of(matrix, row0, chunk, chunks, min(n * WG + lane, W_RUNS - 1u)));
    }
    return raw;
}

fn vecs(matrix: Matrix, t0: u32, chunk: u32, chunks: u32, lane: u32) -> array<vec4u, VECS> {
    var found: array<vec4u, VECS>;
    for (var n = 0u; n < VECS; n++) {
        let p = n * WG + lane;
        let at = min(chunk + p / (PLANES * TB), chunks - 1u) * PLANES + p / TB % PLANES;
        found[n] = x[matrix.x + at * table.rows + min(t0 + p % TB, table.rows - 1u)];
    }
    return found;
}

// Beyond the end of a part of the columns, weights are zero.
fn put_down(raw: Raw, i: u32, p: u32, valid: bool) {
    let packed = packed_of(raw, i);
    let at = p / (R * PARTS) * 2u * R + p / R % PARTS * R + p % R;
    w_bytes[at] = vec4u(packed[0], packed[1], packed[2], packed[3]);
    if PARTS == 1u {
        w_bytes[at + R] = vec4u(packed[FOURS - 4u], packed[FOURS - 3u], packed[FOURS - 2u], packed[FOURS - 1u]);
    }
    w_scales[p] = select(vec2f(), scale_of(raw, i), valid);
}

fn rows_of(chunk: u32, slot: u32) -> Rows {
    return Rows(
        row_of(chunk, slot), row_of(chunk, slot + LANES_ALONG_M),
        row_of(chunk, slot + 2u * LANES_ALONG_M), row_of(chunk, slot + 3u * LANES_ALONG_M),
    );
}

fn row_of(chunk: u32, slot: u32) -> Row {
    let at = chunk * 2u * R + slot;
    let scale = chunk * PARTS * R + slot;
    return Row(w_bytes[at], w_bytes[at + R], vec4f(w_scales[scale], w_scales[scale + (PARTS - 1u) * R]));
}

fn integers_of(chunk: u32, t: u32) -> Integers {
    let at = chunk * PLANES * TB + t;
    var found: Integers;
    found.low = x_tile[at];
    found.high = x_tile[at + TB];
    if BYTES == 2u {
        found.upper_low = x_tile[at + 2u * TB];
        found.upper_high = x_tile[at + 3u * TB];
    }
    found.scale = bitcast<vec4f>(x_tile[at + 2u * BYTES * TB]);
    return found;
}

// Adds the products of a row of x with 4 or 8 rows of W.
fn products(sums: mat2x4f, rows: Rows, more: Rows, chunk: u32, t: u32) -> mat2x4f {
    let one = integers_of(chunk, t);
    let first = column(sums[0], rows, one);
    if TALL {
        return mat2x4f(first, column(sums[1], more, one));
    }
    return mat2x4f(first, sums[1]);
}

fn column(sums: vec4f, rows: Rows, one: Integers) -> vec4f {
    return vec4f(
        product(sums.x, rows.a, one), product(sums.y, rows.b, one),
        product(sums.z, rows.c, one), product(sums.w, rows.d, one),
    );
}

fn product(sum: f32, row: Row, one: Integers) -> f32 {
    if PARTS == 1u {
        var total = 0;
        if BYTES == 2u {
            total = 256 * dot16(dot16(0, one.upper_high, row.high), one.upper_low, row.low);
        }
        total = dot16(dot16(total, one.high, row.high), one.low, row.low);
        return fma(row.scale.x, one.scale.x * f32(total), fma(row.scale.y, one.scale.w, sum));
    }
    let first = one.scale.x * half(row.low, one.low, one.upper_low);
    let second = one.scale.x * half(row.high, one.high, one.upper_high);
    return fma(row.scale.z, second, fma(row.scale.w, one.scale.z, fma(row.scale.x, first, fma(row.scale.y, one.scale.y, sum))));
}

fn half(q: vec4u, x: vec4u, upper: vec4u) -> f32 {
    var total = 0;
    if BYTES == 2u {
        total = 256 * dot16(0, upper, q);
    }
    return f32(dot16(total, x, q));
}

fn put(matrix: Matrix, row: u32, t: u32, sums: mat2x4f) {
    put_four(matrix, row, t, sums[0]);
    if TALL {
        put_four(matrix, row + 4u * LANES_ALONG_M, t, sums[1]);
    }
}

fn put_four(matrix: Matrix, row: u32, t: u32, sums: vec4f) {
    for (var j = 0u; j < 4u; j += PER_OUT) {
        if row + j < matrix.rows && t < rows_now() {
            store(matrix, t, row + j, sums[j], sums[j + PER_OUT - 1u]);
        }
    }
}
