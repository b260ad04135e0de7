// y[t, m] = out(W[m, :] · x[t, :])      a workgroup of 128 for 64 rows m and 64 rows t; a lane for 8 rows m and 4 rows t
// Half of the lanes decode a run of W into workgroup memory while the others copy x, 32 columns at a time.
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const SIDE = 64u;
const COLUMNS = 32u;
const PARTS = COLUMNS / RUN;
const_assert WG == 128u;
const_assert R == 64u;
const_assert TB == 64u;

// Column-major, so that a lane's rows lie side by side.
// Tile is f32 or f16: sums are float32 either way.
var<workgroup> w_tile: array<array<vec4<Tile>, 16>, 32>;    // [COLUMNS, SIDE / 4] decoded weights
var<workgroup> x_tile: array<array<vec4<Tile>, 16>, 32>;    // [COLUMNS, SIDE / 4]

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if t0 >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    let chunks = (matrix.k + COLUMNS - 1u) / COLUMNS;
    let mine_m = lane % 8u;     // which 8 rows m: two vec4s
    let mine_t = lane / 8u;     // which 4 rows t: one vec4
    var acc: array<vec4f, 8>;   // [m, t]
    for (var j = 0u; j < 8u; j++) {
        acc[j] = vec4f();
    }
    for (var c = 0u; c < chunks; c++) {
        if lane < SIDE {
            decode(matrix, min(row0 + lane, matrix.rows - 1u), c, chunks, lane);
        } else {
            copy(matrix, min(t0 + lane - SIDE, step.rows - 1u), c, lane - SIDE);
        }
        workgroupBarrier();
        for (var k = 0u; k < COLUMNS; k++) {
            let values = vec4f(x_tile[k][mine_t]);
            let low = vec4f(w_tile[k][2u * mine_m]);
            let high = vec4f(w_tile[k][2u * mine_m + 1u]);
            for (var j = 0u; j < 4u; j++) {
                acc[j] = fma(vec4f(low[j]), values, acc[j]);
                acc[j + 4u] = fma(vec4f(high[j]), values, acc[j + 4u]);
            }
        }
        workgroupBarrier();
    }
    for (var n = 0u; n < 4u; n++) {
        let t = t0 + mine_t * 4u + n;
        for (var j = 0u; j < 8u; j += PER_OUT) {
            let row = row0 + mine_m * 8u + j;
            if row < matrix.rows && t < step.rows {
                store(matrix, t, row, acc[j][n], acc[j + PER_OUT - 1u][n]);
            }
        }
    }
}

fn decode(matrix: Matrix, row: u32, c: u32, chunks: u32, place: u32) {
    for (var p = 0u; p < PARTS; p++) {
        let i = (row * chunks + c) * PARTS + p;
        let scale = run_scale(i);
        var q = run_quants(i);
        for (var k = 0u; k < RUN; k++) {
            w_tile[p * RUN + k][place / 4u][place % 4u] = Tile(fma(scale.x, q[k / 4u][k % 4u], scale.y));
        }
    }
}

fn copy(matrix: Matrix, t: u32, c: u32, place: u32) {
    for (var k = 0u; k < COLUMNS; k += 4u) {
        let values = x4(matrix.x + t * matrix.k, c * COLUMNS + k, matrix.k);
        for (var n = 0u; n < 4u; n++) {
            x_tile[k + n][place / 4u][place % 4u] = Tile(values[n]);
        }
    }
}
