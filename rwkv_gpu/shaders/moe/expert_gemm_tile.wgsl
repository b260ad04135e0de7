// y[n, m] = result(W_e[m, :] · x[n, :])      a workgroup of 128 for 64 rows m and 32 choices n; a lane for 4 of both
// Half of the lanes decode a run of W_e into workgroup memory while the others copy x, 32 columns at a time.
// needs choices: tile_at; formats/runs: run_quants, run_scale; moe/matrices: row_runs; moe/tiles: input_of
// needs moe/write: write; rows: x4
const LANES = 1u;       // lanes that have rows to themselves
const COLUMNS = 32u;
const CHUNKS = (K + COLUMNS - 1u) / COLUMNS;
const PARTS = COLUMNS / RUN;
const_assert WG == 128u;
const_assert R == 64u;
const_assert TB == 32u;

// Column-major, so that a lane's rows lie side by side.
var<workgroup> w_tile: array<array<f32, 64>, 32>;       // [COLUMNS, R] decoded weights; scalars, as lanes must not write
var<workgroup> x_tile: array<array<f32, 32>, 32>;       // [COLUMNS, TB]                  components of one vector

fn run(group: u32, lane: u32) {
    let tile = tile_at(group / BLOCKS, group % BLOCKS, lane);
    if tile.count == 0u {
        return;
    }
    let m0 = group % BLOCKS * OUTS;
    let mine_m = lane % 16u;    // the lane's 4 rows of W_e: one vec4
    let mine_t = lane / 16u;    // the lane's 4 choices: one vec4
    let start = input_of(tile, lane / 2u % TB);
    var acc: array<vec4f, 4>;   // [m, t]
    for (var j = 0u; j < 4u; j++) {
        acc[j] = vec4f();
    }
    for (var c = 0u; c < CHUNKS; c++) {
        if lane < R {
            decode(row_runs(tile.expert, m0, lane) + c * PARTS, lane);
        } else {
            copy(start, c * COLUMNS, lane % 2u * 16u, lane / 2u % TB);
        }
        workgroupBarrier();
        for (var k = 0u; k < COLUMNS; k++) {
            let t = 4u * mine_t;
            let m = 4u * mine_m;
            let values = vec4f(x_tile[k][t], x_tile[k][t + 1u], x_tile[k][t + 2u], x_tile[k][t + 3u]);
            let weights = vec4f(w_tile[k][m], w_tile[k][m + 1u], w_tile[k][m + 2u], w_tile[k][m + 3u]);
            for (var j = 0u; j < 4u; j++) {
                acc[j] = fma(vec4f(weights[j]), values, acc[j]);
            }
        }
        workgroupBarrier();
    }
    for (var t = 0u; t < 4u; t++) {
        let place = mine_t * 4u + t;
        for (var j = 0u; j < 4u; j += MATRICES) {
            let m = m0 + (mine_m * 4u + j) / MATRICES;
            if m < M && place < tile.count {
                write(tile, place, m, acc[j][t], acc[j + MATRICES - 1u][t]);
            }
        }
    }
}

fn decode(runs: u32, place: u32) {
    for (var p = 0u; p < PARTS; p++) {
        let scale = run_scale(runs + p);
        var q = run_quants(runs + p);
        for (var k = 0u; k < RUN; k++) {
            w_tile[p * RUN + k][place] = fma(scale.x, q[k / 4u][k % 4u], scale.y);
        }
    }
}

// Loads half of the columns of one choice.
fn copy(start: u32, column: u32, half: u32, place: u32) {
    for (var k = half; k < half + 16u; k += 4u) {
        let values = x4(start, column + k, K);
        for (var n = 0u; n < 4u; n++) {
            x_tile[k + n][place] = values[n];
        }
    }
}
