// y[n, m] = result(W_e[m, :] · x[n, :])      LANES_PER_ROW lanes for R rows of W_e and a tile of choices n, several such groups in a workgroup
//
// A lane takes every LANES_PER_ROW-th run of 16 or 32 columns, and loads the next while it multiplies. x goes through workgroup memory.
// Sums are added once, at the end: by shuffles over SHUFFLED_LANES lanes, then in workgroup memory.
// needs choices: tile_at; format: floats, fours_of, run_raw, scale_of; lib/sum/across_subgroups: add_partial, sum_of
// needs lib/sum/squares: add_squares, squares_of; moe/matrices: row_runs; moe/stage: place, stage; moe/tiles: input_of
// needs moe/write: write; norm: root
const LANES = WG / LANES_PER_ROW;    // groups of neighbouring lanes, each with its own rows
const SUMS = R * TB;
const ALL = ROW_RUNS;

fn run(group: u32, lane: u32) {
    let tile = tile_at(group / BLOCKS, group % BLOCKS, lane);
    if tile.count == 0u {
        return;
    }
    let m0 = (group % BLOCKS * LANES + lane / LANES_PER_ROW) * OUTS;
    var acc: array<f32, SUMS>;
    for (var a = 0u; a < SUMS; a++) {
        acc[a] = 0.0;
    }
    var squares: array<f32, TB>;
    for (var t = 0u; t < TB; t++) {
        squares[t] = 0.0;
    }
    var raw = raws(tile.expert, m0, lane % LANES_PER_ROW);
    for (var base = 0u; base < ROW_RUNS; base += STAGED) {
        if base > 0u {
            workgroupBarrier();         // all lanes have read the staged values
        }
        for (var t = 0u; t < TB; t++) {
            squares[t] += stage(t, input_of(tile, t), base, lane);
        }
        workgroupBarrier();
        for (var r = base + lane % LANES_PER_ROW; r < min(base + STAGED, ROW_RUNS); r += LANES_PER_ROW) {
            var next = raw;
            if r + LANES_PER_ROW < ROW_RUNS {
                next = raws(tile.expert, m0, r + LANES_PER_ROW);
            }
            var fours: array<array<Four, FOURS>, R>;
            var scale: array<vec2f, R>;
            for (var j = 0u; j < R; j++) {
                let i = row_runs(tile.expert, m0, j) + r;
                fours[j] = fours_of(raw[j], i);
                scale[j] = scale_of(raw[j], i);
            }
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
                    q[j] = floats(fours[j][c]);
                }
                for (var t = 0u; t < TB; t++) {
                    let values = staged[place(t, r - base) + c];
                    sums[t] += values;
                    for (var j = 0u; j < R; j++) {
                        dots[j * TB + t] += dot(q[j], values);
                    }
                }
            }
            for (var t = 0u; t < TB; t++) {
                let sum = dot(sums[t], vec4f(1.0));
                for (var j = 0u; j < R; j++) {
                    acc[j * TB + t] += scale[j].x * dots[j * TB + t] + scale[j].y * sum;
                }
            }
            raw = next;
        }
    }
    for (var a = 0u; a < SUMS; a++) {
        add_partial(acc[a], a, lane);
    }
    for (var t = 0u; t < TB; t++) {
        add_squares(squares[t], t, lane);
    }
    workgroupBarrier();
    for (var a = lane % LANES_PER_ROW; a < OUTS * TB; a += LANES_PER_ROW) {       // the lanes divide the outputs
        let t = a % TB;
        let m = m0 + a / TB;
        if m < M && t < tile.count {
            let j = a / TB * MATRICES;
            let scale = root(squares_of(t), K);
            let second = scale * sum_of((j + MATRICES - 1u) * TB + t, lane);
            write(tile, t, m, scale * sum_of(j * TB + t, lane), second);
        }
    }
}

// The runs of R rows that a lane multiplies; beyond their end, the last run.
fn raws(expert: u32, m0: u32, r: u32) -> array<Raw, R> {
    var raw: array<Raw, R>;
    for (var j = 0u; j < R; j++) {
        raw[j] = run_raw(row_runs(expert, m0, j) + min(r, ROW_RUNS - 1u));
    }
    return raw;
}

// The place of run r of the row of x that begins there.
fn start_of(start: u32, r: u32) -> vec2u { return vec2u(start, r); }
