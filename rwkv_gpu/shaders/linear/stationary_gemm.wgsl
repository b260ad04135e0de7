// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for many rows m and TB rows t, on matrix units: x stays where it is
//
// Each subgroup keeps BLOCKS x 128 columns of x in fragments, and goes through rows of W, S at a time: it decodes what they have
// of its columns to float16 in workgroup memory of its own, 32 columns at a time, and multiplies. So subgroups need to wait for
// each other only when the sums of S rows meet. The next S rows are on their way in registers meanwhile. Beyond the end of a row,
// W is zero.
//
// Four lanes have neighbouring chunks of 32 columns. A step has eight columns of each. Neighbouring lanes have neighbouring
// rows, which begin in different banks.
// needs decoded weights: four_weights
// needs format: fours_of, run_raw, scale_of
// needs linear/table: store
// needs barrier: meet
// needs table: matrix_of
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;   // of each x: [K / 64, T, 16], then [T] exponents
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const RUNS = 32u / RUN;                 // of a chunk
const FOURS = RUN / 4u;                 // of a run
const STRIDE = 10u;                     // vec4s of a row: 32 columns, and 16 bytes against bank conflicts
const SUMS_STRIDE = S + 4u;             // the same of sums
const ROWS = SUBGROUP / 4u;             // that a subgroup loads at a time
const LOADS = S / ROWS;                 // chunks that a lane decodes of 128 columns
const SUBGROUPS = WG / SUBGROUP;
const HELD = 128u / S * BLOCKS;         // fragments of x
const X_ROWS = FRAGMENTS * S;
const W_SCALE = f32(1u << W_EXPONENT);
// FRAGMENTS: so many times S rows has each x.
const_assert TB == S && R == S;
const_assert LOADS * ROWS == S;
const_assert HELD <= 16u;

alias Chunk = array<Raw, RUNS>;
alias Chunks = array<Chunk, LOADS>;     // of 128 columns, that a lane decodes
alias Runs = array<u32, LOADS>;         // their first runs

var<workgroup> tile: array<vec4<f16>, SUBGROUPS * S * STRIDE>;
var<workgroup> sums: array<f32, SUBGROUPS * S * SUMS_STRIDE>;
var<workgroup> scales: array<f32, TB>;                      // of rows of x
// Blocks of rows, from, to and apart. Of 16 bytes, as loads of fragments want multiples of 16.
var<workgroup> bounds: vec4u;

var<private> matrix: Matrix;
var<private> t0: u32;
var<private> own_tile: u32;     // of the subgroup
var<private> own_row: u32;      // of a lane, the first in its tile
var<private> place: u32;        // of its first four there
var<private> chunk0: u32;       // its first chunk of columns
var<private> chunks_end: u32;   // of those of this part
var<private> x_at: vec2u;       // where its chunks of x begin

fn run(group: u32, lane: u32) {
    t0 = group % table.t_blocks * TB;
    let block = min(group / table.t_blocks % table.blocks, table.blocks - 1u);
    part = group / table.t_blocks / table.blocks;
    matrix = matrix_of(block);
    if lane == 0u {
        let on = t0 < step.rows && part < table.parts;
        bounds = select(vec4u(), vec4u(block - matrix.block, (matrix.rows + R - 1u) / R, matrix.blocks, 0u), on);
    }
    // Matrix units want control flow that naga can prove uniform: it takes what is loaded like this for uniform.
    let here = workgroupUniformLoad(&bounds).xyz;
    if here.x >= here.y {
        return;
    }
    let steps = (matrix.k + 63u) / 64u;
    if lane < TB {
        let exponents = matrix.x + steps * 16u * X_ROWS;
        scales[lane] = ldexp(1.0, i32(x[exponents + min(t0 + lane, step.rows - 1u)].x) - i32(W_EXPONENT));
    }
    let line = lane % SUBGROUP;
    own_tile = lane / SUBGROUP * S * STRIDE;
    own_row = line % ROWS;
    place = own_tile + own_row * STRIDE + line / ROWS * 2u;
    let blocks = (matrix.k + 127u) / 128u;
    chunk0 = (part * blocks / table.parts + lane / SUBGROUP * BLOCKS) * 4u + line / ROWS;
    chunks_end = min((part + 1u) * blocks / table.parts * 4u, (matrix.k + 31u) / 32u);
    let starts = min(vec2u(chunk0, chunk0 + 4u) / 2u, vec2u(steps - 1u));
    x_at = matrix.x + (starts * X_ROWS + t0 + own_row) * 16u + chunk0 % 2u;
    multiply(here, lane);
}

fn multiply(here: vec3u, lane: u32) {
    copy_x(0u); let b0 = x_fragment(0u); let b1 = x_fragment(1u);
    if S == 16u { copy_x(2u); } let b2 = x_fragment(2u); let b3 = x_fragment(3u);
    copy_x(4u); let b4 = x_fragment(4u); let b5 = x_fragment(5u);
    if S == 16u { copy_x(6u); } let b6 = x_fragment(6u); let b7 = x_fragment(7u);
    copy_x(8u); let b8 = x_fragment(8u); let b9 = x_fragment(9u);
    if S == 16u { copy_x(10u); } let b10 = x_fragment(10u); let b11 = x_fragment(11u);
    copy_x(12u); let b12 = x_fragment(12u); let b13 = x_fragment(13u);
    if S == 16u { copy_x(14u); } let b14 = x_fragment(14u); let b15 = x_fragment(15u);
    var runs0 = runs_at(here.x, 0u);
    var raw0 = chunks_at(runs0);
    var runs1 = runs_at(here.x, BLOCKS - 1u);
    var raw1 = chunks_at(runs1);
    for (var at = here.x; at < here.y; at += here.z) {
        let on = at + here.z < here.y;
        var c = Sums();
        decode(raw0, runs0, 0u); c = coopMultiplyAdd(w_fragment(0u), b0, c); c = coopMultiplyAdd(w_fragment(1u), b1, c);
        if S == 16u { decode(raw0, runs0, 2u); } c = coopMultiplyAdd(w_fragment(2u), b2, c); c = coopMultiplyAdd(w_fragment(3u), b3, c);
        decode(raw0, runs0, 4u); c = coopMultiplyAdd(w_fragment(4u), b4, c); c = coopMultiplyAdd(w_fragment(5u), b5, c);
        if S == 16u { decode(raw0, runs0, 6u); } c = coopMultiplyAdd(w_fragment(6u), b6, c); c = coopMultiplyAdd(w_fragment(7u), b7, c);
        if HELD > 8u {
            // A branch keeps loads here: a driver would move them down to where they are used.
            if on && BLOCKS > 1u {
                runs0 = runs_at(at + here.z, 0u);
                raw0 = chunks_at(runs0);
            }
            decode(raw1, runs1, 8u); c = coopMultiplyAdd(w_fragment(8u), b8, c); c = coopMultiplyAdd(w_fragment(9u), b9, c);
            if S == 16u { decode(raw1, runs1, 10u); } c = coopMultiplyAdd(w_fragment(10u), b10, c); c = coopMultiplyAdd(w_fragment(11u), b11, c);
            decode(raw1, runs1, 12u); c = coopMultiplyAdd(w_fragment(12u), b12, c); c = coopMultiplyAdd(w_fragment(13u), b13, c);
            if S == 16u { decode(raw1, runs1, 14u); } c = coopMultiplyAdd(w_fragment(14u), b14, c); c = coopMultiplyAdd(w_fragment(15u), b15, c);
        }
        if on {
            runs1 = runs_at(at + here.z, BLOCKS - 1u);
            raw1 = chunks_at(runs1);
        }
        if BLOCKS == 1u {
            runs0 = runs1;
            raw0 = raw1;
        }
        workgroupBarrier();             // until the sums before have left
        coopStore(c, &sums[lane / SUBGROUP * S * SUMS_STRIDE], SUMS_STRIDE);
        workgroupBarrier();
        for (var n = lane * PER_OUT; n < S * S; n += WG * PER_OUT) {
            put(at * R + n % S, n / S, sum_of(n), sum_of(n + PER_OUT - 1u));
        }
    }
}

fn sum_of(n: u32) -> f32 {
    var sum = 0.0;
    for (var k = 0u; k < SUBGROUPS; k++) {
        sum += sums[(k * S + n / S) * SUMS_STRIDE + n % S];
    }
    return sum;
}

// The columns of x of fragment n and of those behind it in a step. Beyond the end they are the last, which then meet zeros.
fn copy_x(n: u32) {
    meet();
    for (var i = 0u; i < LOADS && n < HELD; i++) {
        let first = select(x_at.x, x_at.y, n * S >= 128u) + i * ROWS * 16u + n * S / 32u % 4u * 4u;
        tile[place + i * ROWS * STRIDE] = x[first];
        tile[place + i * ROWS * STRIDE + 1u] = x[first + 2u];
    }
    meet();
}

fn x_fragment(n: u32) -> Right { return coopLoad<Right>(&tile[own_tile + n * S % 32u / 4u], STRIDE); }

fn w_fragment(n: u32) -> Left { return coopLoadT<Left>(&tile[own_tile + n * S % 32u / 4u], STRIDE); }

// The first run of each chunk that a lane decodes. Beyond the end it is the last.
fn runs_at(at: u32, block: u32) -> Runs {
    let chunks = (matrix.k + 31u) / 32u;
    var runs: Runs;
    for (var i = 0u; i < LOADS; i++) {
        let row = min(at * R + i * ROWS + own_row, matrix.rows - 1u);
        runs[i] = (row * chunks + min(chunk0 + 4u * block, chunks - 1u)) * RUNS;
    }
    return runs;
}

fn chunks_at(runs: Runs) -> Chunks {
    var chunks: Chunks;
    for (var i = 0u; i < LOADS; i++) {
        for (var p = 0u; p < RUNS; p++) {
            chunks[i][p] = run_raw(runs[i] + p);
        }
    }
    return chunks;
}

// The columns of W of fragment n and of those behind it in a step: eight of each chunk.
fn decode(raw: Chunks, runs: Runs, n: u32) {
    let inside = chunk0 + n * S / 128u * 4u < chunks_end;
    meet();
    for (var i = 0u; i < LOADS; i++) {
        var own = raw[i];
        let four = n * S / 32u % 4u * 2u;
        let p = four / FOURS;
        let scale = select(vec2f(), scale_of(own[p], runs[i] + p) * W_SCALE, inside);
        var q = fours_of(own[p], runs[i] + p);
        tile[place + i * ROWS * STRIDE] = four_weights(q[four % FOURS], scale);
        tile[place + i * ROWS * STRIDE + 1u] = four_weights(q[four % FOURS + 1u], scale);
    }
    meet();
}

fn put(row: u32, t: u32, first: f32, second: f32) {
    if t0 + t < step.rows && row < matrix.rows && part < table.parts {
        store(matrix, t0 + t, row, scales[t] * first, scales[t] * second);
    }
}
