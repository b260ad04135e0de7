// y[n, m] = result(W_e[m, :] · x[n, :])      a workgroup stages the x of a choice n, LANES_PER_ROW lanes have R rows of W_e
//
// As `linear/gemv_int`: a lane takes every LANES_PER_ROW-th chunk of 32 columns, and loads the next while it multiplies.
// If SHARES is less than BLOCKS, each of the SHARES workgroups of a choice processes several blocks of rows with x,
// which it stages once. x becomes integers, unless decoding W to floats is less work than to integers.
// needs choices: tile_at; format: run_raw; lib/sum/squares: add_squares, squares_of; moe/matrices: row_runs
// needs moe/tiles: input_of; moe/write: write; norm: root; row: prefetch_row, stage_row; staging: part_of, product
// needs sum: group_sum
const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const CHUNKS = K / 32u;
const LANES = WG / LANES_PER_ROW;    // groups of neighbouring lanes, each with its own rows

const_assert K % 32u == 0u;
const_assert SUBGROUP % LANES_PER_ROW == 0u;
const_assert STAGED % LANES_PER_ROW == 0u;
const_assert OUTS <= LANES_PER_ROW;

fn run(group: u32, lane: u32) {
    prefetch_row(group / SHARES, lane);
    let tile = tile_at(group / SHARES, group % SHARES, lane);
    if tile.count == 0u {
        return;
    }
    let line = lane % LANES_PER_ROW;
    var m0 = first_row(group % SHARES, lane);
    var raw = raws(tile.expert, m0, line);
    add_squares(stage_row(input_of(tile, 0u), lane), 0u, lane);
    workgroupBarrier();
    let scale = root(squares_of(0u), K);
    for (var block = group % SHARES; block < BLOCKS; block += SHARES) {
        let next_m0 = first_row(block + SHARES, lane);
        var sums: array<f32, R>;
        for (var j = 0u; j < R; j++) {
            sums[j] = 0.0;
        }
        for (var chunk = line; chunk < STAGED; chunk += LANES_PER_ROW) {
            let ends = SHARES < BLOCKS && chunk + LANES_PER_ROW >= STAGED;
            let next = raws(tile.expert, select(m0, next_m0, ends), select(chunk + LANES_PER_ROW, line, ends));
            for (var p = 0u; p < PARTS; p++) {
                let part = part_of(chunk, p);
                for (var j = 0u; j < R; j++) {
                    sums[j] = product(sums[j], part, raw[j * PARTS + p], run_of(tile.expert, m0, j, chunk) + p);
                }
            }
            raw = next;
        }
        for (var j = 0u; j < R; j += MATRICES) {      // one lane for each output
            let one = scale * group_sum(sums[j], LANES_PER_ROW);
            let second = scale * group_sum(sums[j + MATRICES - 1u], LANES_PER_ROW);
            let m = m0 + j / MATRICES;
            if line == j / MATRICES && m < M {
                write(tile, 0u, m, one, second);
            }
        }
        m0 = next_m0;
    }
}

// The first of the rows that a lane has in a block. Rows beyond the last block are loaded, but not used.
fn first_row(block: u32, lane: u32) -> u32 { return (block * LANES + lane / LANES_PER_ROW) * OUTS; }

// The first run of a chunk of row j from m0 on; beyond the end, that of the last chunk, where x is zero.
fn run_of(expert: u32, m0: u32, j: u32, chunk: u32) -> u32 {
    return row_runs(expert, m0, j) + min(chunk, CHUNKS - 1u) * PARTS;
}

// The runs of R rows that a lane multiplies.
fn raws(expert: u32, m0: u32, chunk: u32) -> array<Raw, R * PARTS> {
    var raw: array<Raw, R * PARTS>;
    for (var j = 0u; j < R; j++) {
        let first = run_of(expert, m0, j, chunk);
        for (var p = 0u; p < PARTS; p++) {
            raw[j * PARTS + p] = run_raw(first + p);
        }
    }
    return raw;
}
