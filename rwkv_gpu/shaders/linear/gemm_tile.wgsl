// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, LANES_ALONG_M lanes along m; a lane for 8 rows m and 8 or 4 rows t
//
// For 32 columns at a time, half of the lanes decode W into workgroup memory, while the others transpose x, so that a
// lane's four rows are adjacent. The next columns are prefetched. A lane's sums are four 4 x 4 tiles, or two, as
// products of a column of W with a row of x; with Tile = f16 its factors are rounded, and summed in float32.
// needs format: floats, fours_of, run_raw, scale_of; linear/table: store; rows: x4; table: matrix_of
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const DOWN = WG / LANES_ALONG_M;                 // lanes along t
const HALF = WG / 2u;
const RUNS = R * PARTS / HALF;          // runs that a lane decodes per chunk
const SQUARES = TB * 2u / HALF;         // 4 x 4 squares of x that a lane transposes
const W4 = R / 4u + GAP;                // vec4s between columns; with a gap they lie in different banks
const X4 = TB / 4u + GAP;
const_assert R == 8u * LANES_ALONG_M;
const WIDE = TB == 8u * DOWN;             // true if a lane has 8 rows t
const_assert WIDE || TB == 4u * DOWN;
const_assert R * PARTS % HALF == 0u;
const_assert TB * 2u % HALF == 0u;
const_assert LANES_ALONG_M % 8u == 0u && DOWN % 4u == 0u;

alias Column = vec4<Tile>;

var<workgroup> w_tile: array<Tile, 128u * W4>;      // [32, R]: scalars, as lanes must not write components of one vector
var<workgroup> x_tile: array<Column, 32u * X4>;     // [32, TB / 4]

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks % table.blocks;
    let own_part = group / table.t_blocks / table.blocks;
    if t0 >= step.rows || own_part >= table.parts {     // a private variable would not count as uniform
        return;
    }
    part = own_part;
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    let chunks = (matrix.k + 31u) / 32u;
    let start = own_part * chunks / table.parts;
    let end = (own_part + 1u) * chunks / table.parts;
    // 8 x 4 neighbouring lanes, whose reads of a column hit 32 different banks.
    let m = lane % 8u + lane / 32u % (LANES_ALONG_M / 8u) * 8u;
    let t = lane / 8u % 4u + lane / (4u * LANES_ALONG_M) * 4u;
    var sums00 = mat4x4f();
    var sums01 = mat4x4f();
    var sums10 = mat4x4f();
    var sums11 = mat4x4f();
    var raw: array<Raw, RUNS>;
    var squares: array<mat4x4f, SQUARES>;
    for (var chunk = start; chunk <= end; chunk++) {
        if chunk > start {                 // stores the loaded values
            workgroupBarrier();
            if lane < HALF {
                for (var n = 0u; n < RUNS; n++) {
                    let p = n * HALF + lane;
                    decode(raw[n], run_of(matrix, row0 + p % R, chunk - 1u, chunks) + p / R, p % R, p / R);
                }
            } else {
                for (var n = 0u; n < SQUARES; n++) {
                    turn(squares[n], n * HALF + lane - HALF);
                }
            }
            workgroupBarrier();
        }
        if chunk < end {                // starts to load the next chunk
            if lane < HALF {
                for (var n = 0u; n < RUNS; n++) {
                    let p = n * HALF + lane;
                    raw[n] = run_raw(run_of(matrix, row0 + p % R, chunk, chunks) + p / R);
                }
            } else {
                for (var n = 0u; n < SQUARES; n++) {
                    squares[n] = square_of(matrix, t0, chunk, n * HALF + lane - HALF);
                }
            }
        }
        if chunk > start {
            for (var k = 0u; k < 32u; k += 4u) {    // unrolled by four here, as compilers do not do so
                let a = factors(k, m, t);
                let b = factors(k + 1u, m, t);
                let c = factors(k + 2u, m, t);
                let d = factors(k + 3u, m, t);
                sums00 = outer(outer(outer(outer(sums00, a.w0, a.x0), b.w0, b.x0), c.w0, c.x0), d.w0, d.x0);
                sums10 = outer(outer(outer(outer(sums10, a.w1, a.x0), b.w1, b.x0), c.w1, c.x0), d.w1, d.x0);
                if WIDE {
                    sums01 = outer(outer(outer(outer(sums01, a.w0, a.x1), b.w0, b.x1), c.w0, c.x1), d.w0, d.x1);
                    sums11 = outer(outer(outer(outer(sums11, a.w1, a.x1), b.w1, b.x1), c.w1, c.x1), d.w1, d.x1);
                }
            }
        }
    }
    put(matrix, row0 + 4u * m, t0 + 4u * t, sums00);
    put(matrix, row0 + 4u * (m + LANES_ALONG_M), t0 + 4u * t, sums10);
    if WIDE {
        put(matrix, row0 + 4u * m, t0 + 4u * (t + DOWN), sums01);
        put(matrix, row0 + 4u * (m + LANES_ALONG_M), t0 + 4u * (t + DOWN), sums11);
    }
}

fn run_of(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> u32 {
    return (min(row, matrix.rows - 1u) * chunks + chunk) * PARTS;
}

// The factors of a lane for a column: 4 rows of W and of x, and 4 more.
struct Factors {
    w0: Column,
    w1: Column,
    x0: Column,
    x1: Column,
}

fn factors(k: u32, m: u32, t: u32) -> Factors {
    return Factors(
        rows_of(4u * (k * W4 + m)), rows_of(4u * (k * W4 + m + LANES_ALONG_M)),
        x_tile[k * X4 + t], x_tile[k * X4 + t + select(0u, DOWN, WIDE)],
    );
}

// Loads four rows of a column of W.
fn rows_of(at: u32) -> Column { return Column(w_tile[at], w_tile[at + 1u], w_tile[at + 2u], w_tile[at + 3u]); }

fn outer(sum: mat4x4f, a: Column, b: Column) -> mat4x4f {
    let rows = vec4f(a);
    return mat4x4f(
        fma(rows, vec4f(f32(b.x)), sum[0]), fma(rows, vec4f(f32(b.y)), sum[1]),
        fma(rows, vec4f(f32(b.z)), sum[2]), fma(rows, vec4f(f32(b.w)), sum[3]),
    );
}

fn decode(raw: Raw, i: u32, row: u32, part: u32) {
    let scale = scale_of(raw, i);
    var fours = fours_of(raw, i);
    for (var c = 0u; c < RUN / 4u; c++) {
        let values = Column(fma(vec4f(scale.x), floats(fours[c]), vec4f(scale.y)));
        let at = 4u * (part * RUN + 4u * c) * W4 + row;
        w_tile[at] = values.x;
        w_tile[at + 4u * W4] = values.y;
        w_tile[at + 8u * W4] = values.z;
        w_tile[at + 12u * W4] = values.w;
    }
}

// Four columns of four rows of x. e counts pairs of columns first, so that neighbours write to different banks.
fn square_of(matrix: Matrix, t0: u32, chunk: u32, e: u32) -> mat4x4f {
    let k = 32u * chunk + 4u * columns_of(e);
    let t = t0 + e / 2u % (TB / 4u) * 4u;
    return mat4x4f(four_of(matrix, t, k), four_of(matrix, t + 1u, k), four_of(matrix, t + 2u, k), four_of(matrix, t + 3u, k));
}

fn four_of(matrix: Matrix, t: u32, k: u32) -> vec4f {
    return x4(matrix.x + min(t, step.rows - 1u) * matrix.k, k, matrix.k);
}

fn columns_of(e: u32) -> u32 { return e % 2u + e / (TB / 2u) * 2u; }

fn turn(square: mat4x4f, e: u32) {
    let turned = transpose(square);
    let at = 4u * columns_of(e) * X4 + e / 2u % (TB / 4u);
    x_tile[at] = Column(turned[0]);
    x_tile[at + X4] = Column(turned[1]);
    x_tile[at + 2u * X4] = Column(turned[2]);
    x_tile[at + 3u * X4] = Column(turned[3]);
}

fn put(matrix: Matrix, row: u32, t: u32, square: mat4x4f) {
    var columns = square;
    for (var n = 0u; n < 4u; n++) {
        for (var j = 0u; j < 4u; j += PER_OUT) {
            if row + j < matrix.rows && t + n < step.rows {
                store(matrix, t + n, row + j, columns[n][j], columns[n][j + PER_OUT - 1u]);
            }
        }
    }
}
