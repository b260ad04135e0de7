// y[t, m] = out(W[m, :] · x[t, :])      a workgroup stages one row of x and multiplies many rows of W by it
//
// LANES_PER_ROW lanes have R rows m at a time; each lane has every LANES_PER_ROW-th chunk of 32 columns. Sums are added up by
// shuffles, so that no subgroup waits for another once x is staged. The next chunk is prefetched, of the same rows or of the
// next ones.
// needs emitted statistics: emit_statistics; epilogue: epilogue_inputs, store_with; format: run_raw
// needs lib/sum/squares: add_squares, squares_of; norm: root; row statistics: find_statistics
// needs staging: part_of, product, stage; sum: group_sum; table: matrix_of, rows_now
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const BLOCK = WG / LANES_PER_ROW * R;            // rows of W that a workgroup has at a time
const IN_LANES = false;                 // true if the first lanes store all rows, one each

const_assert WG % SUBGROUP == 0u;
const_assert SUBGROUP % LANES_PER_ROW == 0u;
const_assert SUBGROUP >= 8u;
const_assert STAGED % LANES_PER_ROW == 0u;
const_assert R % PER_OUT == 0u;
const_assert R <= LANES_PER_ROW * PER_OUT;

fn run(group: u32, lane: u32) {
    let t = group % table.t_blocks;
    let block = group / table.t_blocks;
    if t >= rows_now() || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let chunks = (matrix.k + 31u) / 32u;
    let stride = BLOCK * matrix.blocks;
    let line = lane % LANES_PER_ROW;
    var base = BLOCK * (block - matrix.block);
    var row = base + lane / LANES_PER_ROW * R;
    let output = min(line * PER_OUT, R - PER_OUT);      // which of its R rows a lane outputs
    var raw = raws(matrix, row, line, chunks);
    var inputs = epilogue_inputs(matrix, t, min(row + output, matrix.rows - PER_OUT));
    first_row = t;
    own_lane = lane;
    find_statistics(lane);
    let squares = stage(matrix.x + t * matrix.k, matrix.k, lane);
    add_squares(squares, 0u, lane);
    workgroupBarrier();
    let scale = root(squares_of(0u), matrix.k);
    while base < matrix.rows {
        var sums: array<f32, R>;
        for (var j = 0u; j < R; j++) {
            sums[j] = 0.0;
        }
        for (var first = 0u; first < chunks; first += LANES_PER_ROW) {
            let chunk = first + line;
            // Without a branch: an unneeded load at the end costs less than a branch.
            let last = first + LANES_PER_ROW >= chunks;
            let below = select(row, row + stride, last && base + stride < matrix.rows);
            let next = raws(matrix, below, select(chunk + LANES_PER_ROW, line, last), chunks);
            for (var p = 0u; p < PARTS; p++) {
                let part = part_of(chunk, p);
                for (var j = 0u; j < R; j++) {
                    sums[j] = product(sums[j], part, raw[j * PARTS + p], run_of(matrix, row + j, chunk, chunks) + p);
                }
            }
            raw = next;
        }
        var one = 0.0;
        var second = 0.0;
        for (var j = 0u; j < R; j++) {      // one lane for each output
            let sum = scale * group_sum(sums[j], LANES_PER_ROW);
            let own = line == j / PER_OUT;
            one = select(one, sum, own && j % PER_OUT == 0u);
            second = select(second, sum, own && j % PER_OUT == PER_OUT - 1u);
        }
        if line < R / PER_OUT && row + output < matrix.rows {
            store_with(matrix, t, row + output, one, second, inputs);
        }
        base += stride;
        row += stride;
        if base < matrix.rows {
            inputs = epilogue_inputs(matrix, t, min(row + output, matrix.rows - PER_OUT));
        }
    }
    let own = lane / LANES_PER_ROW * R + output;
    emit_statistics(own, line < R / PER_OUT && base - stride + own < matrix.rows, block - matrix.block, matrix.rows, lane);
}

// The first run of a chunk; beyond the end of a row, that of the last chunk, where x is zero.
fn run_of(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> u32 {
    let here = select(min(chunk, chunks - 1u), chunk, chunks % LANES_PER_ROW == 0u);
    return (select(min(row, matrix.rows - 1u), row, matrix.rows % BLOCK == 0u) * chunks + here) * PARTS;
}

// The runs of R rows that a lane multiplies.
fn raws(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> array<Raw, R * PARTS> {
    var raw: array<Raw, R * PARTS>;
    for (var j = 0u; j < R; j++) {
        let first = run_of(matrix, row + j, chunk, chunks);
        for (var p = 0u; p < PARTS; p++) {
            raw[j * PARTS + p] = run_raw(first + p);
        }
    }
    return raw;
}
