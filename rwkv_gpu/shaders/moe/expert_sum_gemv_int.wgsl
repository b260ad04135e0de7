// y[t, m] = sum_j shares[t, j] · (W_e[m, :] · x[t, j, :]) + residual[t, m]      LANES_PER_ROW lanes for R rows m of one t, e = experts[t, j]
//
// As `moe/expert_gemv_int`, but over the chunks of all USED products, as if they were one long row. The choices are loaded while x is
// staged, as only W depends on them.
// needs format: run_raw; linear/staging/integers: part_of, product, stage
// needs moe/chosen: choice_of, early_biases, keep_choice, sum_of_biases; moe/matrices: row_runs
// needs next: collect, keep_block; residual: residual_at; shares: share_at; sum: group_sum
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T, M]

const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const CHUNKS = K / 32u;
const ALL = USED * CHUNKS;
const LANES = WG / LANES_PER_ROW;
const OWNED = LANES * R;         // rows of a workgroup
const MATRICES = 1u;
const NORMED = false;

var<private> first_choice: u32;   // the first choice of the row

const_assert K % 32u == 0u;
const_assert SUBGROUP % LANES_PER_ROW == 0u;
const_assert STAGED % LANES_PER_ROW == 0u;
const_assert R <= LANES_PER_ROW;

fn run(group: u32, lane: u32) {
    let t = group / BLOCKS;
    if t >= step.rows {
        return;
    }
    let line = lane % LANES_PER_ROW;
    let first = group % BLOCKS * OWNED;
    let m0 = first + lane / LANES_PER_ROW * R;
    first_choice = t * USED;
    var added = 0.0;        // the residual of the row whose sum the lane stores
    if line < R && m0 + line < M {
        added = residual_at(t * M + m0 + line);
    }
    let choice = choice_of(t, lane);
    _ = stage(t * USED * K, USED * K, lane);
    keep_choice(choice, lane);
    workgroupBarrier();
    var raw = raws(m0, line);
    let biases = early_biases(min(m0 + line, M - 1u), line < R);
    var sums: array<f32, R>;
    for (var j = 0u; j < R; j++) {
        sums[j] = 0.0;
    }
    for (var chunk = line; chunk < STAGED; chunk += LANES_PER_ROW) {
        let next = raws(m0, chunk + LANES_PER_ROW);
        for (var p = 0u; p < PARTS; p++) {
            let part = part_of(chunk, p);
            for (var j = 0u; j < R; j++) {
                sums[j] = product(sums[j], part, raw[j * PARTS + p], run_of(m0, j, chunk) + p);
            }
        }
        raw = next;
    }
    for (var j = 0u; j < R; j++) {
        let sum = group_sum(sums[j], LANES_PER_ROW);
        if line == j && m0 + j < M {
            let value = sum + added + sum_of_biases(biases);
            y[t * M + m0 + j] = value;
            collect(m0 + j - first, value);
        }
    }
    keep_block(t, first, lane);
}

// Staged values already contain the expert's share.
fn gained(values: vec4f, k: u32) -> vec4f { return values * share_at(first_choice + k / K); }

// The first run of a chunk; chunks are counted over all products. Beyond the last chunk, x is zero, so any run will do.
fn run_of(m0: u32, j: u32, chunk: u32) -> u32 {
    let here = min(chunk, ALL - 1u);
    return row_runs(chosen[here / CHUNKS], m0, j) + here % CHUNKS * PARTS;
}

fn raws(m0: u32, chunk: u32) -> array<Raw, R * PARTS> {
    var raw: array<Raw, R * PARTS>;
    for (var j = 0u; j < R; j++) {
        let first = run_of(m0, j, chunk);
        for (var p = 0u; p < PARTS; p++) {
            raw[j * PARTS + p] = run_raw(first + p);
        }
    }
    return raw;
}
