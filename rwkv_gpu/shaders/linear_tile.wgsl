// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, SIDE lanes along m; a lane for 8 of both
//
// 32 columns at a time: half of the lanes decode W into workgroup memory while the others turn x, column by column, so that
// a lane's four rows lie together. What is multiplied next is on its way meanwhile. A lane's sums are four 4 x 4 tiles, as
// products of a column of W with a row of x; with Tile = f16 they are float16 within a chunk, and float32 over all.
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const DOWN = WG / SIDE;                 // lanes along t
const HALF = WG / 2u;
const RUNS = R * PARTS / HALF;          // that a lane decodes of a chunk
const FOURS = TB * 8u / HALF;           // that a lane turns
const W4 = R / 4u + GAP;                // vec4s between columns; with a gap they lie in different banks
const X4 = TB / 4u + GAP;
const_assert R == 8u * SIDE;
const_assert TB == 8u * DOWN;
const_assert R * PARTS % HALF == 0u;
const_assert TB * 8u % HALF == 0u;

alias Column = vec4<Tile>;
alias Square = mat4x4<Tile>;

var<workgroup> w_tile: array<Column, 32u * W4>;     // [32, R / 4]
var<workgroup> x_tile: array<Column, 32u * X4>;     // [32, TB / 4]

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if t0 >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    let chunks = (matrix.k + 31u) / 32u;
    let m = lane % SIDE;
    let t = lane / SIDE;
    var sums00 = mat4x4f();
    var sums01 = mat4x4f();
    var sums10 = mat4x4f();
    var sums11 = mat4x4f();
    var raw: array<Raw, RUNS>;
    var fours: array<vec4f, FOURS>;
    for (var chunk = 0u; chunk <= chunks; chunk++) {
        if chunk > 0u {                 // what was asked for is put down
            workgroupBarrier();
            if lane < HALF {
                for (var n = 0u; n < RUNS; n++) {
                    let p = n * HALF + lane;
                    decode(raw[n], run_of(matrix, row0 + p % R, chunk - 1u, chunks) + p / R, p % R, p / R);
                }
            } else {
                for (var n = 0u; n < FOURS; n++) {
                    turn(fours[n], n * HALF + lane - HALF);
                }
            }
            workgroupBarrier();
        }
        if chunk < chunks {             // what comes next is asked for
            if lane < HALF {
                for (var n = 0u; n < RUNS; n++) {
                    let p = n * HALF + lane;
                    raw[n] = run_raw(run_of(matrix, row0 + p % R, chunk, chunks) + p / R);
                }
            } else {
                for (var n = 0u; n < FOURS; n++) {
                    let e = n * HALF + lane - HALF;
                    let start = matrix.x + min(t0 + e / 8u, step.rows - 1u) * matrix.k;
                    fours[n] = x4(start, 32u * chunk + e % 8u * 4u, matrix.k);
                }
            }
        }
        if chunk > 0u {
            var part00 = Square();
            var part01 = Square();
            var part10 = Square();
            var part11 = Square();
            for (var k = 0u; k < 32u; k++) {
                let w0 = w_tile[k * W4 + m];
                let w1 = w_tile[k * W4 + m + SIDE];
                let x0 = x_tile[k * X4 + t];
                let x1 = x_tile[k * X4 + t + DOWN];
                part00 = outer(part00, w0, x0);
                part01 = outer(part01, w0, x1);
                part10 = outer(part10, w1, x0);
                part11 = outer(part11, w1, x1);
            }
            sums00 += wide(part00);
            sums01 += wide(part01);
            sums10 += wide(part10);
            sums11 += wide(part11);
        }
    }
    put(matrix, row0 + 4u * m, t0 + 4u * t, sums00);
    put(matrix, row0 + 4u * m, t0 + 4u * (t + DOWN), sums01);
    put(matrix, row0 + 4u * (m + SIDE), t0 + 4u * t, sums10);
    put(matrix, row0 + 4u * (m + SIDE), t0 + 4u * (t + DOWN), sums11);
}

fn run_of(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> u32 {
    return (min(row, matrix.rows - 1u) * chunks + chunk) * PARTS;
}

fn outer(sum: Square, a: Column, b: Column) -> Square {
    return Square(
        fma(a, Column(b.x), sum[0]), fma(a, Column(b.y), sum[1]),
        fma(a, Column(b.z), sum[2]), fma(a, Column(b.w), sum[3]),
    );
}

fn wide(part: Square) -> mat4x4f {
    return mat4x4f(vec4f(part[0]), vec4f(part[1]), vec4f(part[2]), vec4f(part[3]));
}

fn decode(raw: Raw, i: u32, row: u32, part: u32) {
    let scale = scale_of(raw, i);
    var fours = fours_of(raw, i);
    for (var c = 0u; c < RUN / 4u; c++) {
        let values = Column(fma(vec4f(scale.x), floats(fours[c]), vec4f(scale.y)));
        let at = (part * RUN + 4u * c) * W4 + row / 4u;
        w_tile[at][row % 4u] = values.x;
        w_tile[at + W4][row % 4u] = values.y;
        w_tile[at + 2u * W4][row % 4u] = values.z;
        w_tile[at + 3u * W4][row % 4u] = values.w;
    }
}

// Four columns of a row of x: e counts them row by row.
fn turn(four: vec4f, e: u32) {
    let values = Column(four);
    let at = e % 8u * 4u * X4 + e / 32u;
    let n = e / 8u % 4u;
    x_tile[at][n] = values.x;
    x_tile[at + X4][n] = values.y;
    x_tile[at + 2u * X4][n] = values.z;
    x_tile[at + 3u * X4][n] = values.w;
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
