// y[t, m] = out(W[m, :] · x[t, :])      a workgroup stages one row of x for one row of W of each SIDE lanes
//
// linear_row for matrices of which every workgroup has but one block of rows. AHEAD chunks of 32 columns are on their way at
// a time, each in registers of its own: to move what is still loading would be to wait for it. So the loop over chunks is
// one that compilers unroll as a whole.
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const BLOCK = WG / SIDE;
const CHUNKS = WIDTH / 32u;
const TURNS = STAGED / SIDE;                    // chunks of a row for a lane
const OWN = (WIDTH / 4u + WG - 1u) / WG;        // vec4s of x for a lane

const_assert WIDTH % 32u == 0u;
const_assert WG % SUBGROUP == 0u;
const_assert SUBGROUP % SIDE == 0u;
const_assert SUBGROUP >= 8u;
const_assert STAGED % SIDE == 0u;
const_assert PER_OUT == 1u;

alias Raws = array<Raw, PARTS>;

fn run(group: u32, lane: u32) {
    let t = group % table.t_blocks;
    let block = group / table.t_blocks;
    if t >= rows_now() || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let start = matrix.x + t * WIDTH;
    let line = lane % SIDE;
    let row = BLOCK * (block - matrix.block) + lane / SIDE;
    let known = min(row, matrix.rows - 1u);
    var asked: array<vec4f, OWN>;
    if READY {
        for (var n = 0u; n < OWN; n++) {
            asked[n] = own(start, n, lane);
        }
        workgroupBarrier();             // so that nobody asks for W before all have asked for x
    }
    var raw: array<Raws, AHEAD>;
    for (var a = 0u; a < AHEAD; a++) {
        raw[a] = raws(known, a * SIDE + line);
    }
    let next_to = beside(matrix, t, known);
    look(lane);
    var squares = 0.0;
    for (var n = 0u; n < OWN; n++) {
        let e = n * WG + lane;
        if !READY {
            asked[n] = own(start, n, lane);
        }
        let there = e < WIDTH / 4u;
        if NORMED {
            squares += select(0.0, dot(asked[n], asked[n]), there);
        }
        put(gained(asked[n], 4u * min(e, WIDTH / 4u - 1u)), e, there);
    }
    for (var chunk = CHUNKS + lane; chunk < STAGED; chunk += WG) {
        staged[place(chunk, BYTES, 0u)] = vec4u();
    }
    lay_squares(squares, 0u, lane);
    workgroupBarrier();
    var sum = 0.0;
    for (var turn = 0u; turn < TURNS; turn++) {
        sum = multiplied(sum, raw[turn % AHEAD], known, turn * SIDE + line);
        if turn + AHEAD < TURNS {
            raw[turn % AHEAD] = raws(known, (turn + AHEAD) * SIDE + line);
        }
    }
    sum = root(squares_of(0u), WIDTH) * reach_add(sum, SIDE);
    if line == 0u && row < matrix.rows {
        store_with(matrix, t, row, sum, sum, next_to);
    }
    tell(lane / SIDE, line == 0u && row < matrix.rows, block - matrix.block, matrix.rows, lane);
}

// Vec4 number n of x that a lane stages.
fn own(start: u32, n: u32, lane: u32) -> vec4f {
    return x4(start, 4u * min(n * WG + lane, WIDTH / 4u - 1u), WIDTH);
}

// The first run of a chunk; beyond the end of a row that of the last, which then meets zeros.
fn run_of(row: u32, chunk: u32) -> u32 {
    return (row * CHUNKS + select(min(chunk, CHUNKS - 1u), chunk, CHUNKS == STAGED)) * PARTS;
}

fn raws(row: u32, chunk: u32) -> Raws {
    var raw: Raws;
    for (var p = 0u; p < PARTS; p++) {
        raw[p] = run_raw(run_of(row, chunk) + p);
    }
    return raw;
}

// Adds the products of a chunk.
fn multiplied(before: f32, found: Raws, row: u32, chunk: u32) -> f32 {
    var sum = before;
    var raw = found;
    for (var p = 0u; p < PARTS; p++) {
        // Where rows are whole superblocks, formats want no more than the place within these.
        let i = select(run_of(row, chunk), chunk * PARTS, CHUNKS % 16u == 0u) + p;
        sum = product(sum, part_of(chunk, p), raw[p], i);
    }
    return sum;
}
