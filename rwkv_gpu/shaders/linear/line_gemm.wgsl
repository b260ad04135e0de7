// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, on matrix units: sums stay in fragments
//
// Each subgroup owns FM · S rows of W. Subgroups with the same rows divide every STAGE columns: each takes 256. Eight
// neighbouring lanes load the eight chunks of 32 columns of a row there, so that whole cache lines are read. A lane
// decodes four weights of each chunk at a time to float16, into the subgroup's part of workgroup memory. These are 32
// columns of all rows, which the subgroup multiplies without waiting for others. All subgroups share x in workgroup
// memory, in the same order. Groups of four columns come in pairs: the first and the fifth of a chunk, the second and
// the sixth, and so on. PAIRS pairs of all chunks are staged at a time: a unit. With two COPIES, one subgroup may be a
// unit ahead of another. Sums of different columns are added once, at the end. Beyond the end of a row, W is zero. The
// next stage of W and the next pairs of x are prefetched into registers. With split-K, a workgroup has one of PARTS
// parts of the columns (`lib/matrix_units/sums_of_parts`).
//
// Rows that are written at the same time are four apart, so that they begin in different banks.
// needs decoded four: four_of; format: run_raw, scale_of; barrier: meet; further columns: ask_adapters, stage_adapters
// needs lib/matrix_units/halves: halves; lib/matrix_units/sums: finish_all, finish_one, fragment_at
// needs unit: find_scales, settle_scales; epilogue: store_with; linear/block: find_block, is_inside
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4u>;       // eight float16 each: of each x [K / 64, T, 8], then [T / 2] exponents, if rows have some
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const CHUNKS = 8u;                      // chunks of 32 columns per subgroup and stage
const RUNS = 32u / RUN;                 // runs per chunk
const LOADS = FM * S * CHUNKS / SUBGROUP;    // chunks that a lane decodes
const STRIDE = 10u;                     // vec4s of a row of W in a tile: 32 columns, and 16 bytes of padding against bank conflicts
const X_STRIDE = 18u;                   // vec4s of a row of x: two groups of four of each chunk, and 16 bytes of padding
const X_PAIR = TB * X_STRIDE + 2u;      // vec4s of all rows, and 16 bytes of padding against bank conflicts
const X_COPY = X_PAIR * PAIRS * ALONG_K;
const UNITS = 4u / PAIRS;               // units per stage
const X_EIGHTS = ALONG_K * 8u * PAIRS * TB;     // groups of eight numbers of x per unit
const X_LOADS = (X_EIGHTS + WG - 1u) / WG;
const X_ROWS = FRAGMENTS * S;
const W_SCALE = f32(1u << W_EXPONENT);
const ALL_COLUMNS = PARTS * STAGES * STAGE;
// FRAGMENTS: rows of each x, in units of S. STAGES: stages of a part of the longest rows of W. ALL_COLUMNS: columns of all parts.
const_assert TB == FT * S && S % 8u == 0u;
const_assert STAGE == ALONG_K * CHUNKS * 32u;
const_assert UNITS * PAIRS == 4u && COPIES <= 2u;
const_assert LOADS * SUBGROUP == FM * S * CHUNKS;
const_assert FM * FT <= 4u && FM <= 2u;

alias Chunk = array<Raw, RUNS>;
alias Chunks = array<Chunk, LOADS>;
alias Scales = array<array<vec2f, RUNS>, LOADS>;
alias Eights = array<vec4u, X_LOADS>;

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE * ALONG_K>;
var<workgroup> x_tile: array<vec4<f16>, X_COPY * COPIES>;
var<workgroup> x_scales: array<f32, TB>;    // the factors of the sums of each row of x
// Nonzero if rows have exponents. It takes 16 bytes, because loads of fragments need multiples of 16.
var<workgroup> inside: vec4u;

var<private> own0: u32;     // the first row of the subgroup
var<private> own_tile: u32; // the subgroup's tile
var<private> own_place: u32;    // the place of the lane's first decoded value
var<private> slot: u32;     // the subgroup's number among those with the same rows
var<private> line: u32;     // the lane's number in the subgroup

fn run(group: u32, lane: u32) {
    find_block(group);
    if lane == 0u {
        inside = vec4u(u32(t0 < step.rows && part < table.parts));
    }
    // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
    if workgroupUniformLoad(&inside).x == 0u {
        return;
    }
    find_scales(lane);
    let subgroup = lane / SUBGROUP;
    line = lane % SUBGROUP;
    slot = subgroup / ALONG_M;
    own0 = row0 + subgroup % ALONG_M * FM * S;
    own_tile = subgroup * FM * S * STRIDE;
    own_place = own_tile + permuted(line / CHUNKS) * STRIDE + line % CHUNKS;
    multiply(lane);
}

fn multiply(lane: u32) {
    var c00 = Sums(); var c10 = Sums(); var c01 = Sums(); var c11 = Sums(); var c02 = Sums(); var c03 = Sums();
    var asked: AdapterColumns;
    var raw = chunks_at(0u);
    var eights = eights_at(0u, 0u, lane);
    for (var at = 0u; at < STAGES; at++) {
        var scales = scales_of(&raw, at);
        var next = raw;
        stage_x(&eights, at, 0u, lane);
        // Branches keep loads here: a driver would move them down to their uses.
        if at + 1u < STAGES {
            next = chunks_at(at + 1u);
        } else {
            asked = ask_adapters(0u, lane);
        }
        // Unrolled by hand: drivers may not unroll a loop, and then keep arrays in memory.
        multiply_pair(&raw, &scales, at, 0u, &c00, &c10, &c01, &c11, &c02, &c03);
        if PAIRS == 1u { stage_x(&eights, at, 1u, lane); }
        multiply_pair(&raw, &scales, at, 1u, &c00, &c10, &c01, &c11, &c02, &c03);
        if PAIRS <= 2u { stage_x(&eights, at, 2u / PAIRS, lane); }
        multiply_pair(&raw, &scales, at, 2u, &c00, &c10, &c01, &c11, &c02, &c03);
        if PAIRS == 1u { stage_x(&eights, at, 3u, lane); }
        multiply_pair(&raw, &scales, at, 3u, &c00, &c10, &c01, &c11, &c02, &c03);
        raw = next;
    }
    for (var at = 0u; at < ADAPTER_STEPS; at++) {
        stage_adapters(asked, lane);
        if at + 1u < ADAPTER_STEPS {
            asked = ask_adapters(at + 1u, lane);
        }
        multiply_tile(x_tile_of(slot), &c00, &c10, &c01, &c11, &c02, &c03);
    }
    settle_scales(lane);
    let subgroup = lane / SUBGROUP;
    coopStore(c00, &y_tile[fragment_at(subgroup, 0u, 0u)], S); finish_one(0u, 0u, lane);
    if FM > 1u { coopStore(c10, &y_tile[fragment_at(subgroup, 1u, 0u)], S); finish_one(1u, 0u, lane); }
    if FT > 1u { coopStore(c01, &y_tile[fragment_at(subgroup, 0u, 1u)], S); finish_one(0u, 1u, lane); }
    if FM > 1u && FT > 1u { coopStore(c11, &y_tile[fragment_at(subgroup, 1u, 1u)], S); finish_one(1u, 1u, lane); }
    if FT > 2u { coopStore(c02, &y_tile[fragment_at(subgroup, 0u, 2u)], S); finish_one(0u, 2u, lane); }
    if FT > 2u { coopStore(c03, &y_tile[fragment_at(subgroup, 0u, 3u)], S); finish_one(0u, 3u, lane); }
    finish_all(lane);
}

// Stores a unit of x, and starts to load the next one.
fn stage_x(eights: ptr<function, Eights>, at: u32, unit: u32, lane: u32) {
    if COPIES == 1u {
        workgroupBarrier();             // all lanes have read the previous unit
    }
    for (var n = 0u; n < X_LOADS; n++) {
        let e = n * WG + lane;
        if X_EIGHTS % WG == 0u || e < X_EIGHTS {
            let to = copy_of(at, unit) + place_of_eight(e);
            x_tile[to] = halves((*eights)[n].xy);
            x_tile[to + 1u] = halves((*eights)[n].zw);
        }
    }
    workgroupBarrier();
    if at + 1u < STAGES || unit + 1u < UNITS {
        *eights = eights_at(at + (unit + 1u) / UNITS, (unit + 1u) % UNITS, lane);
    }
}

fn copy_of(at: u32, unit: u32) -> u32 { return select(unit, at, UNITS == 1u) % COPIES * X_COPY; }

// The place of x for subgroups that share columns.
fn x_tile_of(slot_at: u32) -> u32 { return slot_at * PAIRS * X_PAIR; }

// Multiplies two groups of four columns of each chunk.
fn multiply_pair(
    raw: ptr<function, Chunks>, scales: ptr<function, Scales>, at: u32, pair: u32,
    c00: ptr<function, Sums>, c10: ptr<function, Sums>, c01: ptr<function, Sums>, c11: ptr<function, Sums>,
    c02: ptr<function, Sums>, c03: ptr<function, Sums>,
) {
    let x0 = copy_of(at, pair / PAIRS) + (slot * PAIRS + pair % PAIRS) * X_PAIR;
    decode(raw, scales, at, pair);
    multiply_tile(x0, c00, c10, c01, c11, c02, c03);
    decode(raw, scales, at, pair + 4u);
    multiply_tile(x0 + 8u, c00, c10, c01, c11, c02, c03);
}

fn multiply_tile(
    x0: u32, c00: ptr<function, Sums>, c10: ptr<function, Sums>, c01: ptr<function, Sums>, c11: ptr<function, Sums>,
    c02: ptr<function, Sums>, c03: ptr<function, Sums>,
) {
    for (var f = 0u; f < 8u; f += S / 4u) {
        let a0 = coopLoadT<Left>(&w_tile[own_tile + f], STRIDE);
        let a1 = coopLoadT<Left>(&w_tile[own_tile + (FM - 1u) * S * STRIDE + f], STRIDE);
        let b0 = coopLoad<Right>(&x_tile[x0 + f], X_STRIDE);
        *c00 = coopMultiplyAdd(a0, b0, *c00);
        if FM > 1u { *c10 = coopMultiplyAdd(a1, b0, *c10); }
        if FT > 1u {
            let b1 = coopLoad<Right>(&x_tile[x0 + S * X_STRIDE + f], X_STRIDE);
            *c01 = coopMultiplyAdd(a0, b1, *c01);
            if FM > 1u { *c11 = coopMultiplyAdd(a1, b1, *c11); }
        }
        if FT > 2u {
            *c02 = coopMultiplyAdd(a0, coopLoad<Right>(&x_tile[x0 + 2u * S * X_STRIDE + f], X_STRIDE), *c02);
            *c03 = coopMultiplyAdd(a0, coopLoad<Right>(&x_tile[x0 + 3u * S * X_STRIDE + f], X_STRIDE), *c03);
        }
    }
}

// Among the rows of W of the subgroup, the one that the lane's n-th load reads.
fn row_of(n: u32) -> u32 { return permuted(line / CHUNKS) + row_beyond(n); }

// The distance of that row from the first row: `permuted` moves bits, and the lane and n provide different bits.
fn row_beyond(n: u32) -> u32 { return permuted(n * SUBGROUP / CHUNKS); }

fn permuted(r: u32) -> u32 { return r % 2u * 4u + r / 2u % 2u + r / 4u % 2u * 2u + r / 8u * 8u; }

// The number of the chunk in its row.
fn chunk_at(at: u32) -> u32 { return ((part * STAGES + at) * ALONG_K + slot) * CHUNKS + line % CHUNKS; }

// The first run of that chunk; beyond the end, the last run.
fn run_at(n: u32, at: u32) -> u32 {
    let chunks = (matrix.k + 31u) / 32u;
    let row = select(min(own0 + row_of(n), matrix.rows - 1u), own0 + row_of(n), matrix.rows % R == 0u);
    let chunk = select(min(chunk_at(at), chunks - 1u), chunk_at(at), matrix.k == ALL_COLUMNS);
    return (row * chunks + chunk) * RUNS;
}

fn chunks_at(at: u32) -> Chunks {
    var chunks: Chunks;
    for (var n = 0u; n < LOADS; n++) {
        for (var p = 0u; p < RUNS; p++) {
            chunks[n][p] = run_raw(run_at(n, at) + p);
        }
    }
    return chunks;
}

fn scales_of(raw: ptr<function, Chunks>, at: u32) -> Scales {
    var scales: Scales;
    let within = matrix.k == ALL_COLUMNS || chunk_at(at) * 32u < matrix.k;
    for (var n = 0u; n < LOADS; n++) {
        for (var p = 0u; p < RUNS; p++) {
            scales[n][p] = select(vec2f(), scale_of((*raw)[n][p], run_at(n, at) + p) * W_SCALE, within);
        }
    }
    return scales;
}

// Decodes one group of four of each chunk into the tile of the subgroup.
fn decode(raw: ptr<function, Chunks>, scales: ptr<function, Scales>, at: u32, four: u32) {
    let p = four / (RUN / 4u);
    meet();
    for (var n = 0u; n < LOADS; n++) {
        let weights = four_of((*raw)[n][p], run_at(n, at) + p, four % (RUN / 4u), (*scales)[n][p]);
        w_tile[own_place + row_beyond(n) * STRIDE] = weights;
    }
    meet();
}

// The groups of eight of x that a lane copies for a unit: two groups of four, of neighbouring chunks. Beyond the end it repeats the last, and W is zero there.
fn eights_at(at: u32, unit: u32, lane: u32) -> Eights {
    let steps = (matrix.k + 63u) / 64u;
    var eights: Eights;
    for (var n = 0u; n < X_LOADS; n++) {
        let e = min(n * WG + lane, X_EIGHTS - 1u);
        let own = ((part * STAGES + at) * ALONG_K + slot_of(e)) * 4u + step_of(e);
        let near = select(min(own, steps - 1u), own, matrix.k == ALL_COLUMNS);
        let t = t0 + e / (2u * PAIRS) % TB;
        let four = e / PAIRS % 2u * 4u + unit * PAIRS + e % PAIRS;
        eights[n] = x[matrix.x / 2u + (near * X_ROWS + select(min(t, X_ROWS - 1u), t, FRAGMENTS % FT == 0u)) * 8u + four];
    }
    return eights;
}

// For a group of eight: the subgroups that use it, and which of their blocks of 64 columns it is in.
fn slot_of(e: u32) -> u32 { return e / (8u * PAIRS * TB); }

fn step_of(e: u32) -> u32 { return e / (2u * PAIRS * TB) % 4u; }

// The place of a group of eight in a copy.
fn place_of_eight(e: u32) -> u32 {
    let pair = slot_of(e) * PAIRS + e % PAIRS;
    return pair * X_PAIR + e / (2u * PAIRS) % TB * X_STRIDE + e / PAIRS % 2u * 8u + step_of(e) * 2u;
}

fn put(m: u32, t: u32, first: f32, second: f32, wanted: vec3f) {
    if is_inside(m, t) {
        store_with(matrix, t0 + t, row0 + m, x_scales[t] * first, x_scales[t] * second, wanted);
    }
}
