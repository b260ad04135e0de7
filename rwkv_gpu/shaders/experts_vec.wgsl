// y[n, m] = result(W_e[m, :] · x[n, :])      a workgroup for R rows m and a tile of choices n; lanes stride over K
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T * USED, M]

const LANES = 1u;       // that have rows to themselves

fn run(group: u32, lane: u32) {
    let tile = tile_at(group / BLOCKS);
    if tile.count == 0u {
        return;
    }
    let m0 = group % BLOCKS * OUTS;
    var starts: array<u32, TB>;
    for (var t = 0u; t < TB; t++) {
        starts[t] = input_of(tile, t);
    }
    var acc: array<f32, R * TB>;
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = 0.0;
    }
    for (var r = lane; r < RUNS; r += WG) {
        var q: array<array<vec4f, RUN / 4u>, R>;
        var scale: array<vec2f, R>;
        for (var j = 0u; j < R; j++) {
            let i = row_runs(tile.expert, m0, j) + r;
            q[j] = run_quants(i);
            scale[j] = run_scale(i);
        }
        for (var t = 0u; t < TB; t++) {
            if t >= tile.count {
                continue;       // the loop stays one that is unrolled
            }
            var dots: array<f32, R>;
            for (var j = 0u; j < R; j++) {
                dots[j] = 0.0;
            }
            var sums = 0.0;
            for (var c = 0u; c < RUN / 4u; c++) {
                let values = x4(starts[t], r * RUN + 4u * c, K);
                sums += dot(values, vec4f(1.0));
                for (var j = 0u; j < R; j++) {
                    dots[j] += dot(q[j][c], values);
                }
            }
            for (var j = 0u; j < R; j++) {
                acc[j * TB + t] += scale[j].x * dots[j] + scale[j].y * sums;
            }
        }
    }
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = reduce_add(acc[a], lane);
    }
    for (var a = lane; a < OUTS * TB; a += WG) {    // the outputs are shared out among the lanes
        let t = a % TB;
        let m = m0 + a / TB;
        if m < M && t < tile.count {
            let j = a / TB * MATRICES;
            let i = choice_at(tile.first + t) * M + m;
            y[i] = result(acc[j * TB + t], acc[(j + MATRICES - 1u) * TB + t], i);
        }
    }
}
