// y[t, m] = out(W[m, :] · x[t, :])      a workgroup is a subgroup of 8; each lane has R rows m to itself, for TB rows t
// Suits software Vulkan: x is loaded once by 8 lanes and broadcast, and nothing is reduced.
// needs formats/runs: run_quants, run_scale; lanes: reduce_add; lib/lanes/broadcast: spread
// needs lib/lanes/products: add_products; linear/table: store; norm: gained, root; row statistics: find_statistics
// needs rows: x4; table: matrix_of
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const CHUNK = 32u;      // 8 lanes load a vec4 each
const PARTS = CHUNK / RUN;

const_assert WG == 8u;

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if t0 >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row0 = ((block - matrix.block) * WG + lane) * R;
    let chunks = (matrix.k + CHUNK - 1u) / CHUNK;
    var acc: array<f32, R * TB>;
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = 0.0;
    }
    var squares: array<f32, TB>;
    for (var t = 0u; t < TB; t++) {
        squares[t] = 0.0;
    }
    first_row = t0;
    own_lane = lane;
    find_statistics(lane);
    for (var c = 0u; c < chunks; c++) {
        var q: array<array<vec4f, RUN / 4u>, R * PARTS>;
        var scale: array<vec2f, R * PARTS>;
        for (var j = 0u; j < R; j++) {
            let i = (min(row0 + j, matrix.rows - 1u) * chunks + c) * PARTS;
            for (var p = 0u; p < PARTS; p++) {
                q[j * PARTS + p] = run_quants(i + p);
                scale[j * PARTS + p] = run_scale(i + p);
            }
        }
        for (var t = 0u; t < TB; t++) {
            let start = matrix.x + min(t0 + t, step.rows - 1u) * matrix.k;
            let k = c * CHUNK + 4u * lane;
            let plain = x4(start, k, matrix.k);
            var values = spread(gained(plain, k));
            squares[t] += dot(plain, plain);
            add_products(&acc, &q, &scale, &values, t);
        }
    }
    for (var t = 0u; t < TB; t++) {
        var scale = 1.0;
        if NORMED {
            scale = root(reduce_add(squares[t], lane), matrix.k);
        }
        for (var j = 0u; j < R; j += PER_OUT) {
            if row0 + j < matrix.rows && t0 + t < step.rows {
                store(matrix, t0 + t, row0 + j, scale * acc[j * TB + t], scale * acc[(j + PER_OUT - 1u) * TB + t]);
            }
        }
    }
}
