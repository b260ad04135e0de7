// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, on matrix units, for few rows of x
//
// Its subgroups divide the rows of W and the columns, COLUMNS at a time. Each decodes its own OWN x COLUMNS weights
// into workgroup memory as float16. Subgroups of the same columns together copy x there, as `round_rows` wrote it. Sums
// of different columns are added at the end. DEPTH steps are prefetched into registers. If DEPTH is two, there are two
// copies of the tiles, so that one barrier per step is enough. Beyond the end of a row, W is zero.
//
// Within 64 columns, groups of four from both chunks of 32 alternate, in W and in x. So neighbouring lanes, which
// decode these two chunks, write to neighbouring places.
// needs decoded weights: four_weights; format: fours_of, run_raw, scale_of; lib/matrix_units/halves: halves
// needs lib/matrix_units/sums: finish_all, finish_one, fragment_at; epilogue: store_with
// needs linear/block: find_block, is_inside
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4u>;       // eight float16 each: of each x [K / 64, T, 8], then [T / 2] exponents
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const CHUNKS = COLUMNS / 32u;                   // chunks of 32 columns that lanes decode per step
const RUNS = 32u / RUN;                         // runs per chunk
const STRIDE = COLUMNS / 4u + 2u;               // vec4s of a row, with 16 bytes of padding against bank conflicts
const OWN = FM * S;                             // rows of W per subgroup
const LOADS = OWN * CHUNKS / SUBGROUP;          // chunks that a lane decodes per step
const X_LANES = SUBGROUP * ALONG_M;             // lanes that copy x of the same columns
const X_LOADS = TB * COLUMNS / 8u / X_LANES;    // groups of eight numbers of x that a lane copies
const X_ROWS = FRAGMENTS * S;
const W_SCALE = f32(1u << W_EXPONENT);
// FRAGMENTS: rows of each x, in units of S.
const_assert TB == FT * S;
const_assert LOADS * SUBGROUP == OWN * CHUNKS;
const_assert X_LOADS * X_LANES * 8u == TB * COLUMNS;
const_assert COLUMNS % 64u == 0u;
const_assert DEPTH <= 2u;

alias Chunk = array<Raw, RUNS>;

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE * ALONG_K * DEPTH>;
var<workgroup> x_tile: array<vec4<f16>, TB * STRIDE * ALONG_K * DEPTH>;
// The first step and the end of the steps. The variable takes 16 bytes: with 8, products were wrong on an H200, whose
// loads of fragments need multiples of 16.
var<workgroup> bounds: vec4u;


fn run(group: u32, lane: u32) {
    find_block(group);
    if lane == 0u {
        let steps = (matrix.k + COLUMNS - 1u) / COLUMNS;
        let on = t0 < step.rows && part < table.parts;
        bounds = select(vec4u(), vec4u(part * steps / table.parts, (part + 1u) * steps / table.parts, 0u, 0u), on);
    }
// Matrix units need control flow that naga can prove uniform. It accepts values that are loaded in this way.
    let here = workgroupUniformLoad(&bounds).xy;
    if here.x >= here.y {
        return;
    }
    multiply(here, lane);
}

fn multiply(here: vec2u, lane: u32) {
    let subgroup = lane / SUBGROUP;
    let line = lane % SUBGROUP;
    let slot = subgroup / ALONG_M;              // the subgroup's share of the columns of a step
    let x_line = lane % X_LANES;
    let own0 = row0 + subgroup % ALONG_M * OWN;
    #for j in 0..4: var c0{j} = Sums(); var c1{j} = Sums(); var c2{j} = Sums(); var c3{j} = Sums();
    var raw: array<Chunk, LOADS * DEPTH>;
    var eights: array<vec4u, X_LOADS * DEPTH>;
    for (var a = 0u; a < DEPTH; a++) {
        for (var n = 0u; n < LOADS; n++) {
            raw[a * LOADS + n] = chunk_at(n * SUBGROUP + line, own0, here.x + a * ALONG_K + slot, here.y);
        }
        for (var n = 0u; n < X_LOADS; n++) {
            eights[a * X_LOADS + n] = x[x_place(n * X_LANES + x_line, here.x + a * ALONG_K + slot, here.y)];
        }
    }
    for (var first = here.x; first < here.y; first += DEPTH * ALONG_K) {
        for (var a = 0u; a < DEPTH; a++) {
            let at = first + a * ALONG_K + slot;
            let tile = (a * ALONG_K * ALONG_M + subgroup) * OWN * STRIDE;
            let x_rows = (a * ALONG_K + slot) * TB * STRIDE;
            for (var n = 0u; n < LOADS; n++) {
                decode(raw[a * LOADS + n], n * SUBGROUP + line, own0, at, here.y, tile);
            }
            for (var n = 0u; n < LOADS; n++) {
                raw[a * LOADS + n] = chunk_at(n * SUBGROUP + line, own0, at + DEPTH * ALONG_K, here.y);
            }
            for (var n = 0u; n < X_LOADS; n++) {
                let e = n * X_LANES + x_line;
                let to = x_rows + e / 8u % TB * STRIDE + e / (8u * TB) * 16u + e % 8u * 2u;
                x_tile[to] = halves(eights[a * X_LOADS + n].xy);
                x_tile[to + 1u] = halves(eights[a * X_LOADS + n].zw);
                eights[a * X_LOADS + n] = x[x_place(e, at + DEPTH * ALONG_K, here.y)];
            }
            workgroupBarrier();
            for (var k = 0u; k < COLUMNS / S; k++) {
                let w0 = tile + k * (S / 4u);
                let x0 = x_rows + k * (S / 4u);
                let a0 = coopLoadT<Left>(&w_tile[w0], STRIDE);
                #for i in 1..4: let a{i} = coopLoadT<Left>(&w_tile[w0 + min({i}u, FM - 1u) * S * STRIDE], STRIDE);
                let b0 = coopLoad<Right>(&x_tile[x0], STRIDE);
                c00 = coopMultiplyAdd(a0, b0, c00);
                if FM > 1u { c10 = coopMultiplyAdd(a1, b0, c10); }
                if FM > 2u { c20 = coopMultiplyAdd(a2, b0, c20); c30 = coopMultiplyAdd(a3, b0, c30); }
                if FT > 1u {
                    let b1 = coopLoad<Right>(&x_tile[x0 + S * STRIDE], STRIDE);
                    c01 = coopMultiplyAdd(a0, b1, c01);
                    if FM > 1u { c11 = coopMultiplyAdd(a1, b1, c11); }
                    if FM > 2u { c21 = coopMultiplyAdd(a2, b1, c21); c31 = coopMultiplyAdd(a3, b1, c31); }
                }
                if FT > 2u {
                    #for j in 2..4
                    let b{j} = coopLoad<Right>(&x_tile[x0 + {j}u * S * STRIDE], STRIDE);
                    c0{j} = coopMultiplyAdd(a0, b{j}, c0{j});
                    if FM > 1u { c1{j} = coopMultiplyAdd(a1, b{j}, c1{j}); }
                    if FM > 2u { c2{j} = coopMultiplyAdd(a2, b{j}, c2{j}); c3{j} = coopMultiplyAdd(a3, b{j}, c3{j}); }
                    #end
                }
            }
            if DEPTH == 1u {
                workgroupBarrier();
            }
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
    #for j in 2..4
    if FT > 2u { coopStore(c0{j}, &y_tile[fragment_at(subgroup, 0u, {j}u)], S); finish_one(0u, {j}u, lane); }
    if FM > 1u && FT > 2u { coopStore(c1{j}, &y_tile[fragment_at(subgroup, 1u, {j}u)], S); finish_one(1u, {j}u, lane); }
    #for i in 2..4: if FM > 2u && FT > 2u { coopStore(c{i}{j}, &y_tile[fragment_at(subgroup, {i}u, {j}u)], S); finish_one({i}u, {j}u, lane); }
    #end
    finish_all(lane);
}

// The row, and the chunk of a step, that a lane decodes. Sixteen lanes have eight rows of the same 64 columns, so that they
// write to different banks. The next sixteen have the next columns of the same rows, up to the end of the step.
fn row_of(e: u32) -> u32 { return e / 2u % 8u + e / (8u * CHUNKS) * 8u; }

fn chunk_of(e: u32) -> u32 { return e / 16u % (CHUNKS / 2u) * 2u + e % 2u; }

// The first run that a lane decodes. Beyond the end it is the last run.
fn run_at(e: u32, own0: u32, at: u32, end: u32) -> u32 {
    let chunks = (matrix.k + 31u) / 32u;
    let row = own0 + row_of(e);
    let chunk = min(at, end - 1u) * CHUNKS + chunk_of(e);
    let near = select(min(chunk, chunks - 1u), chunk, matrix.k % COLUMNS == 0u);
    return (select(min(row, matrix.rows - 1u), row, matrix.rows % R == 0u) * chunks + near) * RUNS;
}

fn chunk_at(e: u32, own0: u32, at: u32, end: u32) -> Chunk {
    let first = run_at(e, own0, at, end);
    var chunk: Chunk;
    for (var p = 0u; p < RUNS; p++) {
        chunk[p] = run_raw(first + p);
    }
    return chunk;
}

fn decode(chunk: Chunk, e: u32, own0: u32, at: u32, end: u32, tile: u32) {
    var own = chunk;
    let first = run_at(e, own0, at, end);
    let inside = at < end && (matrix.k % COLUMNS == 0u || (at * CHUNKS + chunk_of(e)) * 32u < matrix.k);
    let place = tile + row_of(e) * STRIDE + chunk_of(e) / 2u * 16u + e % 2u;
    for (var p = 0u; p < RUNS; p++) {
        let scale = select(vec2f(), scale_of(own[p], first + p) * W_SCALE, inside);
        var q = fours_of(own[p], first + p);
        for (var n = 0u; n < RUN / 4u; n++) {
            w_tile[place + 2u * (p * (RUN / 4u) + n)] = four_weights(q[n], scale);
        }
    }
}

// The part of x that a lane copies: 64 columns, row by row. Beyond the end it is the last part, which is
// then multiplied by zeros, or not stored.
fn x_place(e: u32, at: u32, end: u32) -> u32 {
    let steps = (matrix.k + 63u) / 64u;
    let own = min(at, end - 1u) * (COLUMNS / 64u) + e / (8u * TB);
    let near = select(min(own, steps - 1u), own, matrix.k % COLUMNS == 0u);
    let t = t0 + e / 8u % TB;
    return matrix.x / 2u + (near * X_ROWS + select(min(t, X_ROWS - 1u), t, FRAGMENTS % FT == 0u)) * 8u + e % 8u;
}

fn put(m: u32, t: u32, first: f32, second: f32, wanted: vec3f) {
    if is_inside(m, t) {
        let exponents = matrix.x + (matrix.k + 63u) / 64u * 16u * X_ROWS;
        let word = x[(exponents + t0 + t) / 2u][(t0 + t) % 2u * 2u];
        let scale = ldexp(1.0, i32(unpack2x16float(word).x) - i32(W_EXPONENT));
        store_with(matrix, t0 + t, row0 + m, scale * first, scale * second, wanted);
    }
}
