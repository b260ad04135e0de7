// y[t, m] = out(W[m, :] · x[t, :])      LANES_PER_ROW lanes for R rows m and TB rows t, several such groups in a workgroup
//
// A lane takes every LANES_PER_ROW-th chunk of 32 columns. x goes through workgroup memory, PREFETCH chunks for each lane at a time, so
// that neighbouring lanes load neighbouring vec4s although each needs its own chunk; padding after each chunk puts chunks in
// different banks. The next columns are prefetched. Sums are added up once, at the end: by shuffles over SHUFFLED_LANES lanes,
// then in workgroup memory.
// needs epilogue: epilogue_inputs, store_with; format: floats, fours_of, run_raw, scale_of
// needs lib/sum/across_subgroups: add_partial, sum_of; lib/sum/squares: add_squares, squares_of; norm: gained, root
// needs row statistics: find_statistics; rows: x4; table: matrix_of, rows_now
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const CHUNK = 8u;                       // vec4s of x per chunk
const PARTS = 32u / RUN;
const FOURS = RUN / 4u;
const GROUPS = WG / LANES_PER_ROW;
const STAGED = LANES_PER_ROW * PREFETCH;            // chunks of a row of x in workgroup memory
const SUMS = R * TB;
const LOADS = (STAGED * CHUNK + WG - 1u) / WG;     // vec4s of a row of x that a lane stages
const EVEN = LOADS * WG == STAGED * CHUNK;      // true if all lanes stage the same number
const EARLY = SUMS / PER_OUT <= LANES_PER_ROW;   // true if a lane has at most one output
const FOLD = TB > 2u;                   // true if weights are scaled before they are multiplied, once for all rows t

const_assert R % PER_OUT == 0u;

var<workgroup> staged: array<vec4f, TB * STAGED * (CHUNK + 1u)>;

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if t0 >= rows_now() || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let line = lane % LANES_PER_ROW;
    let row0 = ((block - matrix.block) * GROUPS + lane / LANES_PER_ROW) * R;
    let chunks = (matrix.k + 31u) / 32u;
    var acc: array<f32, SUMS>;
    for (var a = 0u; a < SUMS; a++) {
        acc[a] = 0.0;
    }
    var squares: array<f32, TB>;
    for (var t = 0u; t < TB; t++) {
        squares[t] = 0.0;
    }
    var raw = raws(matrix, row0, line, chunks);
    var inputs = vec3f();
    if EARLY {
        let o = min(line, SUMS / PER_OUT - 1u);
        inputs = epilogue_inputs(matrix, min(t0 + o % TB, rows_now() - 1u), min(row0 + o / TB * PER_OUT, matrix.rows - PER_OUT));
    }
    first_row = t0;
    own_lane = lane;
    find_statistics(lane);
    var plain = loads(matrix, t0, 0u, lane);
    for (var base = 0u; base < chunks; base += STAGED) {
        if base > 0u {
            workgroupBarrier();         // all lanes have read the staged values
        }
        for (var t = 0u; t < TB; t++) {
            for (var n = 0u; n < LOADS; n++) {
                let e = n * WG + lane;
                let k = 32u * base + 4u * e;
                let values = select(vec4f(), plain[t * LOADS + n], k < matrix.k && e < STAGED * CHUNK);
                if NORMED {
                    squares[t] += dot(values, values);
                }
                if e < STAGED * CHUNK {
                    staged[place(t, e / CHUNK) + e % CHUNK] = gained(values, min(k, matrix.k - 4u));
                }
            }
        }
        workgroupBarrier();
        var next_raw = raw;
        var next_plain = plain;
        if base + STAGED < chunks {
            next_raw = raws(matrix, row0, base + STAGED + line, chunks);
            next_plain = loads(matrix, t0, base + STAGED, lane);
        }
        for (var n = 0u; n < PREFETCH; n++) {
            for (var p = 0u; p < PARTS; p++) {
                var fours: array<array<Four, FOURS>, R>;
                var scale: array<vec2f, R>;
                for (var j = 0u; j < R; j++) {
                    let i = run_of(matrix, row0 + j, base + n * LANES_PER_ROW + line, chunks) + p;
                    fours[j] = fours_of(raw[(n * R + j) * PARTS + p], i);
                    scale[j] = scale_of(raw[(n * R + j) * PARTS + p], i);
                }
                multiply(&acc, &fours, &scale, n * LANES_PER_ROW + line, p * FOURS);
            }
        }
        raw = next_raw;
        plain = next_plain;
    }
    for (var a = 0u; a < SUMS; a++) {
        add_partial(acc[a], a, lane);
    }
    for (var t = 0u; t < TB; t++) {
        add_squares(squares[t], t, lane);
    }
    workgroupBarrier();
    for (var o = line; o < SUMS / PER_OUT; o += LANES_PER_ROW) {     // the lanes divide the outputs
        let t = o % TB;
        let j = o / TB * PER_OUT;
        if row0 + j < matrix.rows && t0 + t < rows_now() {
            let scale = root(squares_of(t), matrix.k);
            let first = scale * sum_of(j * TB + t, lane);
            let second = scale * sum_of((j + PER_OUT - 1u) * TB + t, lane);
            if !EARLY {
                inputs = epilogue_inputs(matrix, t0 + t, row0 + j);
            }
            store_with(matrix, t0 + t, row0 + j, first, second, inputs);
        }
    }
}

// The first run of a chunk; beyond the end of a row the last run, where x is zero.
fn run_of(matrix: Matrix, row: u32, chunk: u32, chunks: u32) -> u32 {
    return (min(row, matrix.rows - 1u) * chunks + min(chunk, chunks - 1u)) * PARTS;
}

// The runs of R rows that a lane multiplies, from a chunk on.
fn raws(matrix: Matrix, row0: u32, chunk: u32, chunks: u32) -> array<Raw, PREFETCH * R * PARTS> {
    var raw: array<Raw, PREFETCH * R * PARTS>;
    for (var n = 0u; n < PREFETCH; n++) {
        for (var j = 0u; j < R; j++) {
            let first = run_of(matrix, row0 + j, chunk + n * LANES_PER_ROW, chunks);
            for (var p = 0u; p < PARTS; p++) {
                raw[(n * R + j) * PARTS + p] = run_raw(first + p);
            }
        }
    }
    return raw;
}

// The vec4s that a lane stages of TB rows of x, from a chunk on. Beyond the end of these rows, and in place of vec4s
// that another lane stages in the next turn, it loads the first vec4: a lane that loads a vec4 may also store it, and
// no two lanes may store the same one.
fn loads(matrix: Matrix, t0: u32, base: u32, lane: u32) -> array<vec4f, TB * LOADS> {
    var values: array<vec4f, TB * LOADS>;
    for (var t = 0u; t < TB; t++) {
        let start = matrix.x + min(t0 + t, rows_now() - 1u) * matrix.k;
        for (var n = 0u; n < LOADS; n++) {
            let e = n * WG + lane;
            let k = 32u * base + 4u * e;
            values[t * LOADS + n] = x4(start, select(0u, k, k < matrix.k && (EVEN || e < STAGED * CHUNK)), matrix.k);
        }
    }
    return values;
}

fn place(t: u32, chunk: u32) -> u32 { return (t * STAGED + chunk) * (CHUNK + 1u); }

// Adds the products of a run of R rows with TB rows of x.
fn multiply(
    acc: ptr<function, array<f32, SUMS>>,
    fours: ptr<function, array<array<Four, FOURS>, R>>,
    scale: ptr<function, array<vec2f, R>>,
    chunk: u32,
    first: u32,
) {
    var dots: array<f32, SUMS>;
    var sums: array<vec4f, TB>;
    for (var t = 0u; t < TB; t++) {
        sums[t] = vec4f();
        for (var j = 0u; j < R; j++) {
            dots[j * TB + t] = 0.0;
        }
    }
    for (var c = 0u; c < FOURS; c++) {
        var q: array<vec4f, R>;
        for (var j = 0u; j < R; j++) {
            q[j] = floats((*fours)[j][c]);
            if FOLD {
                q[j] = fma(vec4f((*scale)[j].x), q[j], vec4f((*scale)[j].y));
            }
        }
        for (var t = 0u; t < TB; t++) {
            let values = staged[place(t, chunk) + first + c];
            for (var j = 0u; j < R; j++) {
                if FOLD {
                    (*acc)[j * TB + t] = dot_onto((*acc)[j * TB + t], q[j], values);
                } else {
                    dots[j * TB + t] = dot_onto(dots[j * TB + t], q[j], values);
                }
            }
            sums[t] += values;
        }
    }
    if !FOLD {
        for (var t = 0u; t < TB; t++) {
            let sum = (sums[t].x + sums[t].y) + (sums[t].z + sums[t].w);
            for (var j = 0u; j < R; j++) {
                let a = j * TB + t;
                (*acc)[a] = fma((*scale)[j].x, dots[a], fma((*scale)[j].y, sum, (*acc)[a]));
            }
        }
    }
}

fn dot_onto(sum: f32, a: vec4f, b: vec4f) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
