// y[t, m] = out(W[m, :] · x[t, :])      a workgroup of four subgroups of 32 for 64 rows m and 64 rows t, on matrix units
// Each subgroup has a quarter: two by two fragments of 16 x 16. Half of the lanes decode W, the others copy x, as float16.
// needs formats/runs: run_quants, run_scale
// needs linear/table: store
// needs rows: x4
// needs table: matrix_of
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const TILE = 64u;
const COLUMNS = 32u;
const STRIDE = 40u;     // of a row in workgroup memory: no multiple of the banks
const PARTS = COLUMNS / RUN;
const_assert WG == 128u;
const_assert R == 64u;
const_assert TB == 64u;

var<workgroup> w_tile: array<f16, 2560>;    // [m, STRIDE]
var<workgroup> x_tile: array<f16, 2560>;    // [t, STRIDE]
var<workgroup> work: u32;
var<workgroup> y_tile: array<f32, 4096>;    // [t, m]

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = min(group / table.t_blocks, table.blocks - 1u);
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    // Matrix units want control flow that naga can prove uniform, and a value loaded like this it takes for uniform.
    if lane == 0u {
        work = select(0u, (matrix.k + COLUMNS - 1u) / COLUMNS, t0 < step.rows && group / table.t_blocks < table.blocks);
    }
    let chunks = workgroupUniformLoad(&work);
    if chunks == 0u {
        return;
    }
    let m_at = lane / 32u % 2u * 32u;
    let t_at = lane / 64u * 32u;
    var acc00 = coop_mat16x16<f32, C>();
    var acc01 = coop_mat16x16<f32, C>();
    var acc10 = coop_mat16x16<f32, C>();
    var acc11 = coop_mat16x16<f32, C>();
    for (var c = 0u; c < chunks; c++) {
        if lane < TILE {
            decode(min(row0 + lane, matrix.rows - 1u), c, chunks, lane * STRIDE);
        } else {
            copy(matrix, min(t0 + lane - TILE, step.rows - 1u), c, (lane - TILE) * STRIDE);
        }
        workgroupBarrier();
        for (var k = 0u; k < COLUMNS; k += 16u) {
            let a0 = coopLoadT<coop_mat16x16<f16, A>>(&w_tile[m_at * STRIDE + k], STRIDE);
            let a1 = coopLoadT<coop_mat16x16<f16, A>>(&w_tile[(m_at + 16u) * STRIDE + k], STRIDE);
            let b0 = coopLoad<coop_mat16x16<f16, B>>(&x_tile[t_at * STRIDE + k], STRIDE);
            let b1 = coopLoad<coop_mat16x16<f16, B>>(&x_tile[(t_at + 16u) * STRIDE + k], STRIDE);
            acc00 = coopMultiplyAdd(a0, b0, acc00);
            acc01 = coopMultiplyAdd(a0, b1, acc01);
            acc10 = coopMultiplyAdd(a1, b0, acc10);
            acc11 = coopMultiplyAdd(a1, b1, acc11);
        }
        workgroupBarrier();
    }
    coopStore(acc00, &y_tile[t_at * TILE + m_at], TILE);
    coopStore(acc01, &y_tile[(t_at + 16u) * TILE + m_at], TILE);
    coopStore(acc10, &y_tile[t_at * TILE + m_at + 16u], TILE);
    coopStore(acc11, &y_tile[(t_at + 16u) * TILE + m_at + 16u], TILE);
    workgroupBarrier();
    for (var i = lane * PER_OUT; i < TILE * TILE; i += WG * PER_OUT) {
        let t = t0 + i / TILE;
        let row = row0 + i % TILE;
        if row < matrix.rows && t < step.rows {
            store(matrix, t, row, y_tile[i], y_tile[i + PER_OUT - 1u]);
        }
    }
}

fn decode(row: u32, c: u32, chunks: u32, place: u32) {
    for (var p = 0u; p < PARTS; p++) {
        let i = (row * chunks + c) * PARTS + p;
        let scale = run_scale(i);
        var q = run_quants(i);
        for (var k = 0u; k < RUN; k++) {
            w_tile[place + p * RUN + k] = f16(fma(scale.x, q[k / 4u][k % 4u], scale.y));
        }
    }
}

fn copy(matrix: Matrix, t: u32, c: u32, place: u32) {
    for (var k = 0u; k < COLUMNS; k += 4u) {
        let values = x4(matrix.x + t * matrix.k, c * COLUMNS + k, matrix.k);
        for (var n = 0u; n < 4u; n++) {
            x_tile[place + k + n] = f16(values[n]);
        }
    }
}
