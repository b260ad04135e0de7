// y[t, m] = out(W[m, :] · x[t, :])      a workgroup stages TB rows of x as integers and multiplies rows of W by all of them
//
// LANES_PER_ROW lanes have R rows m at a time; each lane has every LANES_PER_ROW-th chunk of 32 columns, whose weights
// it decodes once for TB rows t. Workgroup memory holds as many columns of x as fit. If all fit, a workgroup processes
// many rows of W without a barrier. PREFETCH chunks are in flight at a time, of the same rows or of the next ones,
// each in separate registers, because moving a register waits for its load.
// needs epilogue: epilogue_inputs, store_with; format: run_raw, scale_of; linear/skinny/quantised_x: squares_of
// needs linear/staging/integer_products: bytes_of_run, product_of; norm: root; quantised output: quantise_block
// needs row statistics: find_statistics; table: matrix_of, rows_now; x: part_of, stage
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const BLOCK = WG / LANES_PER_ROW * R;            // rows of W that a workgroup has at a time
const SUMS = R * TB;
const OUTS = SUMS / PER_OUT;
const OWN = max(1u, OUTS / LANES_PER_ROW);       // outputs of a lane

const_assert WG % SUBGROUP == 0u;
const_assert SUBGROUP % LANES_PER_ROW == 0u;
const_assert SUBGROUP >= 8u;
const_assert STAGED % (LANES_PER_ROW * PREFETCH) == 0u;
const_assert R % PER_OUT == 0u;
const_assert ((OUTS & (OUTS - 1u)) == 0u);
const_assert LANES_PER_ROW <= 32u;

alias Raws = array<Raw, R * PARTS>;

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if block >= table.blocks || t0 >= rows_now() {
        return;
    }
    let matrix = matrix_of(block);
    let chunks = matrix.k / 32u;
    // Blocks are far apart; if the output needs neighbouring rows, OWNED blocks are adjacent.
    let stride = BLOCK * select(matrix.blocks, 1u, OWNED > 0u);
    let start = BLOCK * (block - matrix.block) * max(1u, OWNED);
    let end = select(matrix.rows, min(matrix.rows, start + BLOCK * OWNED), OWNED > 0u);
    let line = lane % LANES_PER_ROW;
    var base = start;
    var row = base + lane / LANES_PER_ROW * R;
    let output = first_output(line);
    var raw: array<Raws, PREFETCH>;
    for (var a = 0u; a < PREFETCH; a++) {
        raw[a] = raws(matrix, row, a * LANES_PER_ROW + line, chunks);
    }
    var inputs = all_epilogue_inputs(matrix, t0, row, output);
    first_row = t0;
    own_lane = lane;
    find_statistics(lane);
    if WHOLE {
        stage(matrix, t0, 0u, lane);
        workgroupBarrier();
    }
    while base < end {
        var sums: array<f32, SUMS>;
        for (var a = 0u; a < SUMS; a++) {
            sums[a] = 0.0;
        }
        for (var piece = 0u; piece < chunks; piece += STAGED) {
            if PIECED == 1u {
                workgroupBarrier();     // all lanes have read the staged values
                stage(matrix, t0, piece, lane);
                workgroupBarrier();
            }
            for (var first = piece; first < min(piece + STAGED, chunks); first += PREFETCH * LANES_PER_ROW) {
                // Without a branch: an unneeded load at the end costs less than a branch.
                let last = first + PREFETCH * LANES_PER_ROW >= chunks;
                let below = select(row, row + stride, last && base + stride < end);
                for (var a = 0u; a < PREFETCH; a++) {
                    let chunk = first + a * LANES_PER_ROW + line;
                    for (var p = 0u; p < PARTS; p++) {
                        multiply(&sums, raw[a], piece, p, matrix, t0, row, chunk, chunks);
                    }
                    raw[a] = raws(matrix, below, select(chunk + PREFETCH * LANES_PER_ROW, a * LANES_PER_ROW + line, last), chunks);
                }
            }
        }
        if LANES_PER_ROW > 1u { meet(&sums, 0u, line); }
        if LANES_PER_ROW > 2u { meet(&sums, 1u, line); }
        if LANES_PER_ROW > 4u { meet(&sums, 2u, line); }
        if LANES_PER_ROW > 8u { meet(&sums, 3u, line); }
        if LANES_PER_ROW > 16u { meet(&sums, 4u, line); }
        for (var i = 0u; i < OWN; i++) {
            let t = t0 + (output + i) % TB;
            let m = row + (output + i) / TB * PER_OUT;
            if line < OUTS && m < matrix.rows && t < rows_now() {
                let scale = root(squares_of(t - t0), matrix.k);
                let first = scale * sums[i * PER_OUT];
                let second = scale * sums[i * PER_OUT + PER_OUT - 1u];
                store_with(matrix, t, m, first, second, inputs[i]);
            }
        }
        base += stride;
        row += stride;
        if base < end {
            inputs = all_epilogue_inputs(matrix, t0, row, output);
        }
    }
    quantise_block(matrix, t0, start, lane);
}

// The first run of a chunk; beyond the end of a row, that of the last chunk, where x is zero.
fn run_of(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> u32 {
    let here = select(min(chunk, chunks - 1u), chunk, chunks % (LANES_PER_ROW * PREFETCH) == 0u);
    return (select(min(row, matrix.rows - 1u), row, matrix.rows % BLOCK == 0u) * chunks + here) * PARTS;
}

// The runs of R rows that a lane multiplies.
fn raws(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> Raws {
    var raw: Raws;
    for (var j = 0u; j < R; j++) {
        let first = run_of(matrix, row + j, chunk, chunks);
        for (var p = 0u; p < PARTS; p++) {
            raw[j * PARTS + p] = run_raw(first + p);
        }
    }
    return raw;
}

// The epilogue inputs for the sums of a lane.
fn all_epilogue_inputs(matrix: Matrix, t0: u32, row: u32, output: u32) -> array<vec3f, OWN> {
    var found: array<vec3f, OWN>;
    for (var i = 0u; i < OWN; i++) {
        let m = min(row + (output + i) / TB * PER_OUT, matrix.rows - PER_OUT);
        found[i] = epilogue_inputs(matrix, min(t0 + (output + i) % TB, table.rows - 1u), m);
    }
    return found;
}

// Adds the products of part p of a chunk of R rows with TB rows of x.
fn multiply(
    sums: ptr<function, array<f32, SUMS>>,
    raw: Raws,
    piece: u32,
    p: u32,
    matrix: Matrix,
    t0: u32,
    row: u32,
    chunk: u32,
    chunks: u32,
) {
    var own = raw;
    var q: array<Bytes, R>;
    var scale: array<vec2f, R>;
    for (var j = 0u; j < R; j++) {
        let i = run_of(matrix, row + j, chunk, chunks) + p;
        q[j] = bytes_of_run(own[j * PARTS + p], i);
        scale[j] = scale_of(own[j * PARTS + p], i);
    }
    for (var t = 0u; t < TB; t++) {
        let part = part_of(matrix, t0, t, piece, chunk, p);
        for (var j = 0u; j < R; j++) {
            let a = (j / PER_OUT * TB + t) * PER_OUT + j % PER_OUT;
            (*sums)[a] = product_of((*sums)[a], part, q[j], scale[j]);
        }
    }
}

// The first of the outputs whose sums a lane has in the end. Output o is row o / TB · PER_OUT of its R rows, and row o % TB of x.
fn first_output(line: u32) -> u32 {
    var output = 0u;
    for (var n = 0u; (2u << n) <= min(LANES_PER_ROW, OUTS); n++) {
        output += ((line >> n) & 1u) * (OUTS >> (n + 1u));
    }
    return output;
}

// Adds the sums of a lane and of the lane at a distance of 1 << n. Then each of the two has half of the sums; if there
// is only one sum, both have it.
fn meet(sums: ptr<function, array<f32, SUMS>>, n: u32, line: u32) {
    let half = (OUTS >> (n + 1u)) * PER_OUT;
    let upper = ((line >> n) & 1u) == 1u;
    for (var a = 0u; a < half; a++) {
        let mine = select((*sums)[a], (*sums)[a + half], upper);
        let others = select((*sums)[a + half], (*sums)[a], upper);
        (*sums)[a] = mine + subgroupShuffleXor(others, 1u << n);
    }
    for (var a = 0u; half == 0u && a < PER_OUT; a++) {
        (*sums)[a] += subgroupShuffleXor((*sums)[a], 1u << n);
    }
}
