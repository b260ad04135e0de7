// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, on matrix units, for few rows of x
//
// Its subgroups share out the columns, COLUMNS at a time, and none waits for another before the end: each decodes its own
// R x COLUMNS weights into workgroup memory as float16. Fragments of x are loaded from where `round_rows` put them, or, where
// it COPIES, from workgroup memory. DEPTH steps are on their way in registers. Beyond the end of a row, W is zero.
// needs decoded weights: four_weights
// needs format: fours_of, run_raw, scale_of
// needs lib/matrix_units/sums: finish_all, finish_one, fragment_at
// needs linear/table: store
// needs table: matrix_of
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f16>>;   // of each x: [K / S, T / S] fragments [S, S], then [T] exponents
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const CHUNKS = COLUMNS / 32u;                   // of 32 columns, that lanes decode
const RUNS = 32u / RUN;                         // that a chunk has
const STRIDE = COLUMNS / 4u + 2u;               // vec4s of a row: 16 bytes more than its columns, against bank conflicts
const LOADS = R * CHUNKS / SUBGROUP;            // chunks that a lane decodes of a step
const FRAGMENT4 = S * S / 4u;                   // vec4s
const X_LOADS = COPIES * TB * COLUMNS / 4u / SUBGROUP;  // vec4s of x that a lane copies of a step
const W_SCALE = f32(1u << W_EXPONENT);
const_assert R == FM * S;
const_assert TB == FT * S;
const_assert LOADS * SUBGROUP == R * CHUNKS;

alias Chunk = array<Raw, RUNS>;

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE * ALONG_K>;
var<workgroup> x_tile: array<vec4<f16>, max(1u, COPIES * TB * COLUMNS / 4u * ALONG_K)>;
var<workgroup> bounds: vec2u;                   // steps, from and to

var<private> matrix: Matrix;
var<private> row0: u32;
var<private> t0: u32;

fn run(group: u32, lane: u32) {
    t0 = group % table.t_blocks * TB;
    let block = min(group / table.t_blocks % table.blocks, table.blocks - 1u);
    part = group / table.t_blocks / table.blocks;
    matrix = matrix_of(block);
    row0 = (block - matrix.block) * R;
    if lane == 0u {
        let steps = (matrix.k + COLUMNS - 1u) / COLUMNS;
        let on = t0 < step.rows && part < table.parts;
        bounds = select(vec2u(), vec2u(part * steps / table.parts, (part + 1u) * steps / table.parts), on);
    }
    // Matrix units want control flow that naga can prove uniform: it takes what is loaded like this for uniform.
    let here = workgroupUniformLoad(&bounds);
    if here.x >= here.y {
        return;
    }
    multiply(here, lane);
}

fn multiply(here: vec2u, lane: u32) {
    let subgroup = lane / SUBGROUP;
    let line = lane % SUBGROUP;
    let tile = subgroup * R * STRIDE;
    var c00 = Sums(); var c10 = Sums(); var c20 = Sums(); var c30 = Sums();
    var c01 = Sums(); var c11 = Sums(); var c21 = Sums(); var c31 = Sums();
    var c02 = Sums(); var c12 = Sums(); var c22 = Sums(); var c32 = Sums();
    var c03 = Sums(); var c13 = Sums(); var c23 = Sums(); var c33 = Sums();
    let own_x = subgroup * (TB * COLUMNS / 4u);
    var raw: array<Chunk, LOADS * DEPTH>;
    var fours: array<vec4<f16>, max(1u, X_LOADS * DEPTH)>;
    for (var a = 0u; a < DEPTH; a++) {
        for (var n = 0u; n < LOADS; n++) {
            raw[a * LOADS + n] = chunk_at(n * SUBGROUP + line, here.x + a * ALONG_K + subgroup, here.y);
        }
        for (var n = 0u; n < X_LOADS; n++) {
            fours[a * X_LOADS + n] = x_at(n * SUBGROUP + line, here.x + a * ALONG_K + subgroup);
        }
    }
    for (var first = here.x; first < here.y; first += DEPTH * ALONG_K) {
        for (var a = 0u; a < DEPTH; a++) {
            let at = first + a * ALONG_K + subgroup;
            for (var n = 0u; n < LOADS; n++) {
                decode(raw[a * LOADS + n], n * SUBGROUP + line, at, here.y, tile);
            }
            for (var n = 0u; n < X_LOADS; n++) {
                x_tile[own_x + n * SUBGROUP + line] = fours[a * X_LOADS + n];
            }
            for (var n = 0u; n < LOADS; n++) {
                raw[a * LOADS + n] = chunk_at(n * SUBGROUP + line, at + DEPTH * ALONG_K, here.y);
            }
            for (var n = 0u; n < X_LOADS; n++) {
                fours[a * X_LOADS + n] = x_at(n * SUBGROUP + line, at + DEPTH * ALONG_K);
            }
            subgroupBarrier();
            for (var k = 0u; k < COLUMNS / S; k++) {
                let w0 = tile + k * (S / 4u);
                let a0 = coopLoadT<Left>(&w_tile[w0], STRIDE);
                let a1 = coopLoadT<Left>(&w_tile[w0 + min(1u, FM - 1u) * S * STRIDE], STRIDE);
                let a2 = coopLoadT<Left>(&w_tile[w0 + min(2u, FM - 1u) * S * STRIDE], STRIDE);
                let a3 = coopLoadT<Left>(&w_tile[w0 + min(3u, FM - 1u) * S * STRIDE], STRIDE);
                let b0 = x_fragment(own_x, at, k, 0u);
                c00 = coopMultiplyAdd(a0, b0, c00);
                if FM > 1u { c10 = coopMultiplyAdd(a1, b0, c10); }
                if FM > 2u { c20 = coopMultiplyAdd(a2, b0, c20); c30 = coopMultiplyAdd(a3, b0, c30); }
                if FT > 1u {
                    let b1 = x_fragment(own_x, at, k, 1u);
                    c01 = coopMultiplyAdd(a0, b1, c01);
                    if FM > 1u { c11 = coopMultiplyAdd(a1, b1, c11); }
                    if FM > 2u { c21 = coopMultiplyAdd(a2, b1, c21); c31 = coopMultiplyAdd(a3, b1, c31); }
                }
                if FT > 2u {
                    let b2 = x_fragment(own_x, at, k, 2u);
                    c02 = coopMultiplyAdd(a0, b2, c02);
                    if FM > 1u { c12 = coopMultiplyAdd(a1, b2, c12); }
                    if FM > 2u { c22 = coopMultiplyAdd(a2, b2, c22); c32 = coopMultiplyAdd(a3, b2, c32); }
                    let b3 = x_fragment(own_x, at, k, 3u);
                    c03 = coopMultiplyAdd(a0, b3, c03);
                    if FM > 1u { c13 = coopMultiplyAdd(a1, b3, c13); }
                    if FM > 2u { c23 = coopMultiplyAdd(a2, b3, c23); c33 = coopMultiplyAdd(a3, b3, c33); }
                }
            }
            subgroupBarrier();
        }
    }
    coopStore(c00, &y_tile[fragment_at(subgroup, 0u, 0u)], S); finish_one(0u, 0u, lane);
    if FM > 1u { coopStore(c10, &y_tile[fragment_at(subgroup, 1u, 0u)], S); finish_one(1u, 0u, lane); }
    if FM > 2u { coopStore(c20, &y_tile[fragment_at(subgroup, 2u, 0u)], S); finish_one(2u, 0u, lane); }
    if FM > 2u { coopStore(c30, &y_tile[fragment_at(subgroup, 3u, 0u)], S); finish_one(3u, 0u, lane); }
    if FT > 1u { coopStore(c01, &y_tile[fragment_at(subgroup, 0u, 1u)], S); finish_one(0u, 1u, lane); }
    if FM > 1u && FT > 1u { coopStore(c11, &y_tile[fragment_at(subgroup, 1u, 1u)], S); finish_one(1u, 1u, lane); }
    if FM > 2u && FT > 1u { coopStore(c21, &y_tile[fragment_at(subgroup, 2u, 1u)], S); finish_one(2u, 1u, lane); }
    if FM > 2u && FT > 1u { coopStore(c31, &y_tile[fragment_at(subgroup, 3u, 1u)], S); finish_one(3u, 1u, lane); }
    if FT > 2u { coopStore(c02, &y_tile[fragment_at(subgroup, 0u, 2u)], S); finish_one(0u, 2u, lane); }
    if FM > 1u && FT > 2u { coopStore(c12, &y_tile[fragment_at(subgroup, 1u, 2u)], S); finish_one(1u, 2u, lane); }
    if FM > 2u && FT > 2u { coopStore(c22, &y_tile[fragment_at(subgroup, 2u, 2u)], S); finish_one(2u, 2u, lane); }
    if FM > 2u && FT > 2u { coopStore(c32, &y_tile[fragment_at(subgroup, 3u, 2u)], S); finish_one(3u, 2u, lane); }
    if FT > 2u { coopStore(c03, &y_tile[fragment_at(subgroup, 0u, 3u)], S); finish_one(0u, 3u, lane); }
    if FM > 1u && FT > 2u { coopStore(c13, &y_tile[fragment_at(subgroup, 1u, 3u)], S); finish_one(1u, 3u, lane); }
    if FM > 2u && FT > 2u { coopStore(c23, &y_tile[fragment_at(subgroup, 2u, 3u)], S); finish_one(2u, 3u, lane); }
    if FM > 2u && FT > 2u { coopStore(c33, &y_tile[fragment_at(subgroup, 3u, 3u)], S); finish_one(3u, 3u, lane); }
    finish_all(lane);
}

// The first run of a chunk. Neighbouring lanes have neighbouring chunks of a row; beyond the end all have the last one.
fn run_at(e: u32, at: u32, end: u32) -> u32 {
    let chunks = (matrix.k + 31u) / 32u;
    let row = min(row0 + e / CHUNKS, matrix.rows - 1u);
    return (row * chunks + min(min(at, end - 1u) * CHUNKS + e % CHUNKS, chunks - 1u)) * RUNS;
}

fn chunk_at(e: u32, at: u32, end: u32) -> Chunk {
    let first = run_at(e, at, end);
    var chunk: Chunk;
    for (var p = 0u; p < RUNS; p++) {
        chunk[p] = run_raw(first + p);
    }
    return chunk;
}

fn decode(chunk: Chunk, e: u32, at: u32, end: u32, tile: u32) {
    var own = chunk;
    let first = run_at(e, at, end);
    let inside = at < end && (at * CHUNKS + e % CHUNKS) * 32u < matrix.k;
    let place = tile + e / CHUNKS * STRIDE + e % CHUNKS * 8u;
    for (var p = 0u; p < RUNS; p++) {
        let scale = select(vec2f(), scale_of(own[p], first + p) * W_SCALE, inside);
        var q = fours_of(own[p], first + p);
        for (var n = 0u; n < RUN / 4u; n++) {
            w_tile[place + p * (RUN / 4u) + n] = four_weights(q[n], scale);
        }
    }
}

// Fragment j of S columns k of a step.
fn x_fragment(own: u32, at: u32, k: u32, j: u32) -> Right {
    if COPIES == 1u {
        return coopLoad<Right>(&x_tile[own + (k * FT + j) * FRAGMENT4], S / 4u);
    }
    return coopLoad<Right>(&x[x_place(at * (COLUMNS / S) + k, j)], S / 4u);
}

// Vec4 e of what a subgroup copies of a step: its fragments, one after the other.
fn x_at(e: u32, at: u32) -> vec4<f16> {
    let fragment = e / FRAGMENT4;
    return x[x_place(at * (COLUMNS / S) + fragment / FT, fragment % FT) + e % FRAGMENT4];
}

// Fragment j of S columns k of x; beyond the end the last one, which then meets zeros, or is not put anywhere.
fn x_place(k: u32, j: u32) -> u32 {
    let fragments = (table.rows + S - 1u) / S;
    let columns = (matrix.k + 63u) / 64u * (64u / S);
    return matrix.x + (min(k, columns - 1u) * fragments + min(t0 / S + j, fragments - 1u)) * FRAGMENT4;
}

fn put(m: u32, t: u32, first: f32, second: f32) {
    if t0 + t < step.rows && row0 + m < matrix.rows && part < table.parts {
        let fragments = (table.rows + S - 1u) / S;
        let exponents = matrix.x + (matrix.k + 63u) / 64u * (64u / S) * fragments * FRAGMENT4;
        let scale = ldexp(1.0, i32(x[exponents + t0 + t].x) - i32(W_EXPONENT));
        store(matrix, t0 + t, row0 + m, scale * first, scale * second);
    }
}
