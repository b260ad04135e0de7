// y[t, m] = out(W[m, :] · x[t, :])      a workgroup stages one row of x; LANES_PER_ROW lanes compute R rows of W
//
// gemv_int for matrices with a single block of rows per workgroup. PREFETCH chunks of 32 columns are in flight at a time, each
// in separate registers, because moving a register waits for its load. So the loop over chunks is written such that
// compilers unroll it completely.
// Several subgroups may share a row, so that each reads less of x, for more rows. They add up their sums in workgroup memory,
// and then each of the first lanes has a row.
// needs columns: chunk_of_row; emitted statistics: emit_statistics; epilogue: epilogue_inputs, store_with
// needs format: run_raw; lib/sum/squares: add_squares, squares_of; norm: gained, root; row statistics: find_statistics
// needs rows: x4; staging: part_of, place, product, put; sum: group_sum; table: matrix_of, rows_now
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const BLOCK = WG / LANES_PER_ROW * R;            // rows of W for a workgroup
const CHUNKS = WIDTH / 32u;
const TURNS = STAGED / LANES_PER_ROW;                    // chunks of a row for a lane
const OWN = (WIDTH / 4u + WG - 1u) / WG;        // vec4s of x per lane
const EVEN = OWN * WG == WIDTH / 4u;            // true if all lanes have the same number
const SHUFFLED_LANES = min(SUBGROUP, LANES_PER_ROW & (~LANES_PER_ROW + 1u));   // lanes of a row whose sums shuffles add: a power of two
const SUBGROUPS_PER_ROW = LANES_PER_ROW / SHUFFLED_LANES;              // subgroups of a row, whose sums are added in workgroup memory
const MEETS_IN_MEMORY = SUBGROUPS_PER_ROW > 1u;
const IN_LANES = MEETS_IN_MEMORY && BLOCK <= SUBGROUP;      // true if the first lanes store all rows, one each

const_assert WIDTH % 32u == 0u;
const_assert WG % SUBGROUP == 0u;
const_assert SUBGROUP >= 8u;
const_assert STAGED % LANES_PER_ROW == 0u;
const_assert PER_OUT == 1u;
const_assert R <= SHUFFLED_LANES;
const_assert BLOCK <= WG;

alias Raws = array<Raw, R * PARTS>;
alias Sums = array<f32, R>;

var<workgroup> partial_rows: array<f32, BLOCK * SUBGROUPS_PER_ROW>;

fn run(group: u32, lane: u32) {
    let t = group % table.t_blocks;
    let block = group / table.t_blocks;
    if t >= rows_now() || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let start = matrix.x + t * WIDTH;
    let line = lane % LANES_PER_ROW;
    let base = BLOCK * (block - matrix.block);
    let row = base + lane / LANES_PER_ROW * R;
    let own_line = line % SHUFFLED_LANES;
    let own_row = select(lane / LANES_PER_ROW * R + min(line, R - 1u), min(lane, BLOCK - 1u), MEETS_IN_MEMORY);
    let output = base + own_row;                    // the row that a lane outputs
    var loaded_x: array<vec4f, OWN>;
    if READS_X_EARLY {
        for (var n = 0u; n < OWN; n++) {
            loaded_x[n] = own(start, n, lane);
        }
    }
    var raw: array<Raws, PREFETCH>;
    for (var a = 0u; a < PREFETCH; a++) {
        raw[a] = raws(matrix, row, a * LANES_PER_ROW + line);
    }
    let inputs = epilogue_inputs(matrix, t, min(output, matrix.rows - 1u));
    first_row = t;
    own_lane = lane;
    find_statistics(lane);
    var squares = 0.0;
    for (var n = 0u; n < OWN; n++) {
        if !READS_X_EARLY {
            loaded_x[n] = own(start, n, lane);
        }
        let there = EVEN || n * WG + lane < WIDTH / 4u;
        if NORMED {
            squares += select(0.0, dot(loaded_x[n], loaded_x[n]), there);
        }
        put(gained(loaded_x[n], 4u * at(n, lane)), n * WG + lane, there);
    }
    for (var chunk = CHUNKS + lane; chunk < STAGED; chunk += WG) {
        staged[place(chunk, BYTES, 0u)] = vec4u();
    }
    add_squares(squares, 0u, lane);
    workgroupBarrier();
    var sums: Sums;
    for (var turn = 0u; turn < TURNS; turn++) {
        sums = multiplied(sums, raw[turn % PREFETCH], matrix, row, turn * LANES_PER_ROW + line);
        if turn + PREFETCH < TURNS {
            raw[turn % PREFETCH] = raws(matrix, row, (turn + PREFETCH) * LANES_PER_ROW + line);
        }
    }
    let scale = root(squares_of(0u), WIDTH);
    var sum = 0.0;
    for (var j = 0u; j < R; j++) {                  // one lane for each output
        sum = select(sum, scale * group_sum(sums[j], SHUFFLED_LANES), own_line == j);
    }
    if MEETS_IN_MEMORY {
        if own_line < R {
            partial_rows[(lane / LANES_PER_ROW * R + own_line) * SUBGROUPS_PER_ROW + line / SHUFFLED_LANES] = sum;
        }
        workgroupBarrier();
        if lane < BLOCK {
            sum = 0.0;
            for (var own_subgroup = 0u; own_subgroup < SUBGROUPS_PER_ROW; own_subgroup++) {
                sum += partial_rows[lane * SUBGROUPS_PER_ROW + own_subgroup];
            }
        }
    }
    let stores = select(line < R, lane < BLOCK, MEETS_IN_MEMORY) && output < matrix.rows;
    if stores {
        store_with(matrix, t, output, sum, sum, inputs);
    }
    emit_statistics(own_row, stores, block - matrix.block, matrix.rows, lane);
}

// The place in the row of vec4 number n that a lane stages; beyond the end, the place of the first vec4.
fn at(n: u32, lane: u32) -> u32 { return select(0u, n * WG + lane, EVEN || n * WG + lane < WIDTH / 4u); }

fn own(start: u32, n: u32, lane: u32) -> vec4f { return x4(start, 4u * at(n, lane), WIDTH); }

// The first run of a chunk; beyond the end of a row, that of the last chunk, where x is zero.
fn run_of(matrix: Matrix, row: u32, chunk: u32) -> u32 {
    let known = select(min(row, matrix.rows - 1u), row, matrix.rows % BLOCK == 0u);
    return chunk_of_row(known, select(min(chunk, CHUNKS - 1u), chunk, CHUNKS == STAGED), CHUNKS) * PARTS;
}

fn raws(matrix: Matrix, row: u32, chunk: u32) -> Raws {
    var raw: Raws;
    for (var j = 0u; j < R; j++) {
        for (var p = 0u; p < PARTS; p++) {
            raw[j * PARTS + p] = run_raw(run_of(matrix, row + j, chunk) + p);
        }
    }
    return raw;
}

// Adds the products of a chunk.
fn multiplied(before: Sums, found: Raws, matrix: Matrix, row: u32, chunk: u32) -> Sums {
    var sums = before;
    var raw = found;
    for (var p = 0u; p < PARTS; p++) {
        let part = part_of(chunk, p);
        for (var j = 0u; j < R; j++) {
            // If rows are whole superblocks, formats need only the place within a superblock.
            let i = select(run_of(matrix, row + j, chunk), chunk * PARTS, (CHUNKS | SEAM) % 16u == 0u) + p;
            sums[j] = product(sums[j], part, raw[j * PARTS + p], i);
        }
    }
    return sums;
}
