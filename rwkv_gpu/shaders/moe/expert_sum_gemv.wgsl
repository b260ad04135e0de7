// y[t, m] = sum_j shares[t, j] · (W_e[m, :] · x[t, j, :]) + residual[t, m]      LANES_PER_ROW lanes for R rows m of one t, e = experts[t, j]
//
// As `moe/expert_gemv`, but over the runs of all USED products, as if they were one long row.
// needs format: floats, fours_of, run_raw, scale_of; lib/sum/across_subgroups: add_partial, sum_of
// needs moe/chosen: biases_of, choose; moe/matrices: row_runs; moe/stage: place, stage; residual: residual_at
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T, M]

const LANES = WG / LANES_PER_ROW;
const MATRICES = 1u;
const SUMS = R;
const ALL = USED * ROW_RUNS;

fn run(group: u32, lane: u32) {
    let t = group / BLOCKS;
    if t >= step.rows {
        return;
    }
    let m0 = (group % BLOCKS * LANES + lane / LANES_PER_ROW) * R;
    choose(t, lane);
    var acc: array<f32, R>;
    for (var j = 0u; j < R; j++) {
        acc[j] = 0.0;
    }
    var raw = raws(m0, lane % LANES_PER_ROW);
    for (var base = 0u; base < ALL; base += STAGED) {
        if base > 0u {
            workgroupBarrier();         // all lanes have read the staged values
        }
        _ = stage(0u, t * USED * K, base, lane);
        workgroupBarrier();
        for (var c = base + lane % LANES_PER_ROW; c < min(base + STAGED, ALL); c += LANES_PER_ROW) {
            var next = raw;
            if c + LANES_PER_ROW < ALL {
                next = raws(m0, c + LANES_PER_ROW);
            }
            var fours: array<array<Four, FOURS>, R>;
            var dots: array<f32, R>;
            for (var j = 0u; j < R; j++) {
                fours[j] = fours_of(raw[j], run_of(m0, j, c));
                dots[j] = 0.0;
            }
            var sums = vec4f();
            for (var k = 0u; k < FOURS; k++) {
                let values = staged[place(0u, c - base) + k];
                sums += values;
                for (var j = 0u; j < R; j++) {
                    dots[j] += dot(floats(fours[j][k]), values);
                }
            }
            let weight = weights[c / ROW_RUNS];
            for (var j = 0u; j < R; j++) {
                let scale = scale_of(raw[j], run_of(m0, j, c));
                acc[j] += weight * (scale.x * dots[j] + scale.y * dot(sums, vec4f(1.0)));
            }
            raw = next;
        }
    }
    for (var j = 0u; j < R; j++) {
        add_partial(acc[j], j, lane);
    }
    workgroupBarrier();
    for (var j = lane % LANES_PER_ROW; j < R; j += LANES_PER_ROW) {
        if m0 + j < M {
            y[t * M + m0 + j] = sum_of(j, lane) + residual_at(t * M + m0 + j) + biases_of(m0 + j);
        }
    }
}

// A run, counted over all products.
fn run_of(m0: u32, j: u32, c: u32) -> u32 { return row_runs(chosen[c / ROW_RUNS], m0, j) + c % ROW_RUNS; }

fn raws(m0: u32, c: u32) -> array<Raw, R> {
    var raw: array<Raw, R>;
    for (var j = 0u; j < R; j++) {
        raw[j] = run_raw(run_of(m0, j, min(c, ALL - 1u)));
    }
    return raw;
}

// The place of run c of a row of y, counted over its products: the row of x, and the run in it.
fn start_of(start: u32, c: u32) -> vec2u { return vec2u(start + c / ROW_RUNS * K, c % ROW_RUNS); }
