// y[n, m] = result(W_e[m, :] · x[n, :])      SIDE lanes for R rows of W_e and a tile of choices n, several such groups in a workgroup
//
// A lane takes every SIDE-th run of 16 or 32 columns, AHEAD of them at a time, and loads the next while it multiplies. Sums
// meet once, at the end: by shuffles over REACH lanes, then in workgroup memory.
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T * USED, M]

const LANES = WG / SIDE;    // that have rows to themselves, each with those beside it
const SUMS = R * TB + select(0u, TB, NORMED);     // the squares of x behind the products

fn run(group: u32, lane: u32) {
    let tile = tile_at(group / BLOCKS);
    if tile.count == 0u {
        return;
    }
    let m0 = (group % BLOCKS * LANES + lane / SIDE) * OUTS;
    var starts: array<u32, TB>;
    for (var t = 0u; t < TB; t++) {
        starts[t] = input_of(tile, t);
    }
    var acc: array<f32, SUMS>;
    for (var a = 0u; a < SUMS; a++) {
        acc[a] = 0.0;
    }
    var raw = raws(tile.expert, m0, lane % SIDE);
    for (var first = lane % SIDE; first < RUNS; first += SIDE * AHEAD) {
        var next = raw;
        if first + SIDE * AHEAD < RUNS {
            next = raws(tile.expert, m0, first + SIDE * AHEAD);
        }
        for (var n = 0u; n < AHEAD; n++) {
            let r = first + n * SIDE;
            var fours: array<array<Four, FOURS>, R>;
            var scale: array<vec2f, R>;
            for (var j = 0u; j < R; j++) {
                let i = row_runs(tile.expert, m0, j) + min(r, RUNS - 1u);
                fours[j] = fours_of(raw[n * R + j], i);
                scale[j] = scale_of(raw[n * R + j], i);
            }
            var dots: array<f32, R * TB>;
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
                    let plain = x_at(starts[t], r, c);
                    let values = gained(plain, min(r * RUN + 4u * c, K - 4u));
                    if NORMED {
                        acc[R * TB + t] += dot(plain, plain);
                    }
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
        }
        raw = next;
    }
    for (var a = 0u; a < SUMS; a++) {
        lay(acc[a], a, lane);
    }
    workgroupBarrier();
    for (var a = lane % SIDE; a < OUTS * TB; a += SIDE) {       // the outputs are shared out among the lanes
        let t = a % TB;
        let m = m0 + a / TB;
        if m < M && t < tile.count {
            let j = a / TB * MATRICES;
            let i = choice_at(tile.first + t) * M + m;
            let scale = root_of(t, lane);
            let second = scale * sum_of((j + MATRICES - 1u) * TB + t, lane);
            y[i] = result(scale * sum_of(j * TB + t, lane), second, i);
        }
    }
}

fn root_of(t: u32, lane: u32) -> f32 {
    if NORMED {
        return root(sum_of(R * TB + t, lane), K);
    }
    return 1.0;
}

// What a lane multiplies of R rows, from a run on; beyond their end, the last.
fn raws(expert: u32, m0: u32, first: u32) -> array<Raw, AHEAD * R> {
    var raw: array<Raw, AHEAD * R>;
    for (var n = 0u; n < AHEAD; n++) {
        for (var j = 0u; j < R; j++) {
            raw[n * R + j] = run_raw(row_runs(expert, m0, j) + min(first + n * SIDE, RUNS - 1u));
        }
    }
    return raw;
}
