// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, on matrix units: sums stay in fragments
//
// Each subgroup owns S rows of W; subgroups with the same rows divide every STAGE columns. A subgroup decodes its weights to
// float16 in its own workgroup memory, 32 columns at a time, and multiplies them without waiting for others. All subgroups
// share x in workgroup memory, STAGE columns at a time. Sums of different columns are added once, at the end. Beyond the end of
// a row, W is zero. The next stage is prefetched into registers: W in steps of STEP columns, each loaded as soon as the previous
// step in the same registers is multiplied. With split-K, a workgroup has one of PARTS parts of the columns
// (`lib/matrix_units/sums_of_parts`).
//
// Chunks of 32 columns are stored in pairs, as in x: groups of four columns of the two chunks alternate
// (`lib/matrix_units/rounded`).
// Neighbouring lanes decode such a pair and write to neighbouring places. Eight neighbouring rows begin in different banks.
// needs decoded weights: four_weights; format: fours_of, run_raw, scale_of; barrier: meet
// needs further columns: ask_adapters, stage_adapters; lib/matrix_units/halves: halves
// needs lib/matrix_units/sums: finish_one, fragment_at; unit: find_scales, settle_scales; epilogue: store_with
// needs linear/block: find_block, is_inside
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4u>;       // eight float16 each: of each x [K / 64, T, 8], then [T / 2] exponents, if rows have some
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const CHUNKS = STEP / 32u;              // chunks of 32 columns of a row that lanes decode at a time
const PHASES = CHUNKS;                  // phases in which lanes decode these chunks, 32 columns in each
const FOURS = 8u / CHUNKS;              // vec4s of a chunk in each phase
const RUNS = 32u / RUN;                 // runs per chunk
const LOADS = S * CHUNKS / SUBGROUP;    // chunks that a lane decodes
const STRIDE = 10u;                     // vec4s of a row of W in a tile: 32 columns, and 16 bytes of padding against bank conflicts
const X_STRIDE = 18u;                   // vec4s of a row of x: 64 columns, and padding
const STEPS = STAGE / STEP / ALONG_K;   // steps per subgroup and stage
const X_EIGHTS = STAGE * TB / 8u;       // groups of eight numbers of x per stage
const X_LOADS = (X_EIGHTS + WG - 1u) / WG;
const X_ROWS = FRAGMENTS * S;
const W_SCALE = f32(1u << W_EXPONENT);
// FRAGMENTS: rows of each x, in units of S.
const_assert TB == FT * S && S % 8u == 0u;
const_assert STEP == 64u || STEP == 128u;
const_assert STEPS * STEP * ALONG_K == STAGE;
const_assert LOADS * SUBGROUP == S * CHUNKS;
const_assert 2u * FOURS % (S / 4u) == 0u;

alias Chunk = array<Raw, RUNS>;
alias Chunks = array<Chunk, LOADS>;
alias Eights = array<vec4u, X_LOADS>;

var<workgroup> w_tile: array<vec4<f16>, R * STRIDE * ALONG_K>;
var<workgroup> x_tile: array<vec4<f16>, STAGE / 64u * TB * X_STRIDE>;
var<workgroup> x_scales: array<f32, TB>;    // the factors of the sums of each row of x
// The first stage and the end of the stages. The variable takes 16 bytes, because loads of fragments need multiples of 16.
var<workgroup> bounds: vec4u;

var<private> own0: u32;     // the first row of the subgroup
var<private> own_tile: u32; // the subgroup's tile
var<private> slot: u32;     // the subgroup's number among those with the same rows
var<private> line: u32;     // the lane's number in the subgroup

fn run(group: u32, lane: u32) {
    find_block(group);
    let stages = (matrix.k + STAGE - 1u) / STAGE;
    var here = vec2u(0u, stages);
    if table.t_blocks * table.parts > 1u {
        if lane == 0u {
            let on = t0 < step.rows && part < table.parts;
            bounds = vec4u(part * stages / table.parts, (part + 1u) * stages / table.parts, u32(on), 0u);
        }
        // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
        let own = workgroupUniformLoad(&bounds);
        if own.z == 0u {
            return;
        }
        here = own.xy;
    }
    let subgroup = lane / SUBGROUP;
    line = lane % SUBGROUP;
    slot = subgroup / ALONG_M;
    own0 = row0 + subgroup % ALONG_M * S;
    own_tile = subgroup * S * STRIDE;
    multiply(here, lane);
}

fn multiply(here: vec2u, lane: u32) {
    var c0 = Sums(); var c1 = Sums(); var c2 = Sums(); var c3 = Sums();
    var asked: AdapterColumns;
    var raw: array<Chunks, STEPS>;
    for (var s = 0u; s < STEPS; s++) {
        raw[s] = chunks_at(here.x, s);
    }
    var eights = eights_at(here.x, lane);
    find_scales(lane);
    for (var at = here.x; at < here.y; at++) {
        let more = at + 1u < here.y;
        workgroupBarrier();             // all lanes have read the previous stage
        for (var n = 0u; n < X_LOADS; n++) {
            let e = n * WG + lane;
            if e < X_EIGHTS {
                let to = e / 8u * X_STRIDE + e % 8u * 2u;
                x_tile[to] = halves(eights[n].xy);
                x_tile[to + 1u] = halves(eights[n].zw);
            }
        }
        workgroupBarrier();
        // The branch keeps loads here: a driver would move them down to their uses.
        if more {
            eights = eights_at(at + 1u, lane);
        } else {
            asked = ask_adapters(0u, lane);
        }
        for (var s = 0u; s < STEPS; s++) {
            for (var phase = 0u; phase < PHASES; phase++) {
                decode(raw[s], at, s, phase);
                for (var pair = 0u; pair < CHUNKS / 2u; pair++) {
                    let x0 = ((slot * STEPS + s) * (CHUNKS / 2u) + pair) * TB * X_STRIDE + phase * 2u * FOURS;
                    for (var f = 0u; f < 2u * FOURS; f += S / 4u) {
                        multiply_fragment(own_tile + pair * 2u * FOURS + f, x0 + f, &c0, &c1, &c2, &c3);
                    }
                }
            }
            if more {
                raw[s] = chunks_at(at + 1u, s);
            }
        }
    }
    for (var at = 0u; at < ADAPTER_STEPS; at++) {
        stage_adapters(asked, lane);
        if at + 1u < ADAPTER_STEPS {
            asked = ask_adapters(at + 1u, lane);
        }
        for (var f = 0u; f < 8u; f += S / 4u) {
            multiply_fragment(own_tile + f, x_tile_of(slot) + f, &c0, &c1, &c2, &c3);
        }
    }
    settle_scales(lane);
    let subgroup = lane / SUBGROUP;
    coopStore(c0, &y_tile[fragment_at(subgroup, 0u, 0u)], S); finish_one(0u, 0u, lane);
    if FT > 1u { coopStore(c1, &y_tile[fragment_at(subgroup, 0u, 1u)], S); finish_one(0u, 1u, lane); }
    if FT > 2u { coopStore(c2, &y_tile[fragment_at(subgroup, 0u, 2u)], S); finish_one(0u, 2u, lane); }
    if FT > 2u { coopStore(c3, &y_tile[fragment_at(subgroup, 0u, 3u)], S); finish_one(0u, 3u, lane); }
}

// Multiplies S columns of a tile of W.
fn multiply_fragment(
    w0: u32, x0: u32, c0: ptr<function, Sums>, c1: ptr<function, Sums>, c2: ptr<function, Sums>, c3: ptr<function, Sums>,
) {
    let a = coopLoadT<Left>(&w_tile[w0], STRIDE);
    *c0 = coopMultiplyAdd(a, coopLoad<Right>(&x_tile[x0], X_STRIDE), *c0);
    if FT > 1u { *c1 = coopMultiplyAdd(a, coopLoad<Right>(&x_tile[x0 + S * X_STRIDE], X_STRIDE), *c1); }
    if FT > 2u { *c2 = coopMultiplyAdd(a, coopLoad<Right>(&x_tile[x0 + 2u * S * X_STRIDE], X_STRIDE), *c2); }
    if FT > 2u { *c3 = coopMultiplyAdd(a, coopLoad<Right>(&x_tile[x0 + 3u * S * X_STRIDE], X_STRIDE), *c3); }
}

// The place of x for subgroups that share columns.
fn x_tile_of(slot_at: u32) -> u32 { return slot_at * TB * X_STRIDE; }

// The row of the subgroup and the chunk of the step that a lane decodes.
fn row_of(e: u32) -> u32 { return e / 2u % 8u + e / (8u * CHUNKS) * 8u; }

fn chunk_of(e: u32) -> u32 { return e / 16u % (CHUNKS / 2u) * 2u + e % 2u; }

// The number of the chunk in its row.
fn chunk_in_row(e: u32, at: u32, s: u32) -> u32 { return ((at * ALONG_K + slot) * STEPS + s) * CHUNKS + chunk_of(e); }

// The first run of a chunk; beyond the end, the last run.
fn run_at(e: u32, at: u32, s: u32) -> u32 {
    let chunks = (matrix.k + 31u) / 32u;
    return (min(own0 + row_of(e), matrix.rows - 1u) * chunks + min(chunk_in_row(e, at, s), chunks - 1u)) * RUNS;
}

fn chunks_at(at: u32, s: u32) -> Chunks {
    var chunks: Chunks;
    for (var n = 0u; n < LOADS; n++) {
        let first = run_at(n * SUBGROUP + line, at, s);
        for (var p = 0u; p < RUNS; p++) {
            chunks[n][p] = run_raw(first + p);
        }
    }
    return chunks;
}

// Decodes some vec4s of each chunk of a step into the tile of the subgroup.
fn decode(raw: Chunks, at: u32, s: u32, phase: u32) {
    meet();
    for (var n = 0u; n < LOADS; n++) {
        let e = n * SUBGROUP + line;
        var own = raw[n];
        let p = phase * FOURS / (RUN / 4u);
        let run = run_at(e, at, s) + p;
        let inside = chunk_in_row(e, at, s) * 32u < matrix.k;
        let scale = select(vec2f(), scale_of(own[p], run) * W_SCALE, inside);
        var q = fours_of(own[p], run);
        let place = own_tile + row_of(e) * STRIDE + chunk_of(e) / 2u * 2u * FOURS + e % 2u;
        for (var i = 0u; i < FOURS; i++) {
            w_tile[place + 2u * i] = four_weights(q[(phase * FOURS + i) % (RUN / 4u)], scale);
        }
    }
    meet();
}

// The groups of eight of x that a lane copies: for each 64 columns, row by row. Beyond the end it repeats the last, and W is zero there.
fn eights_at(at: u32, lane: u32) -> Eights {
    let steps = (matrix.k + 63u) / 64u;
    var eights: Eights;
    for (var n = 0u; n < X_LOADS; n++) {
        let e = min(n * WG + lane, X_EIGHTS - 1u);
        let own = min(at * (STAGE / 64u) + e / (8u * TB), steps - 1u);
        let t = t0 + e / 8u % TB;
        eights[n] = x[matrix.x / 2u + (own * X_ROWS + select(min(t, X_ROWS - 1u), t, FRAGMENTS % FT == 0u)) * 8u + e % 8u];
    }
    return eights;
}

fn put(m: u32, t: u32, first: f32, second: f32, wanted: vec3f) {
    if is_inside(m, t) {
        store_with(matrix, t0 + t, row0 + m, x_scales[t] * first, x_scales[t] * second, wanted);
    }
}
