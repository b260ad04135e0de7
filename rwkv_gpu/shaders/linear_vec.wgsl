// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t; its lanes stride over the runs of K
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if t0 >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    let runs = (matrix.k + RUN - 1u) / RUN;
    var acc: array<f32, R * TB>;
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = 0.0;
    }
    var squares: array<f32, TB>;
    for (var t = 0u; t < TB; t++) {
        squares[t] = 0.0;
    }
    for (var r = lane; r < runs; r += WG) {
        var q: array<array<vec4f, RUN / 4u>, R>;
        var scale: array<vec2f, R>;
        for (var j = 0u; j < R; j++) {
            let i = min(row0 + j, matrix.rows - 1u) * runs + r;
            q[j] = run_quants(i);
            scale[j] = run_scale(i);
        }
        for (var t = 0u; t < TB; t++) {
            let start = matrix.x + min(t0 + t, step.rows - 1u) * matrix.k;
            var dots: array<f32, R>;
            for (var j = 0u; j < R; j++) {
                dots[j] = 0.0;
            }
            var sums = 0.0;
            for (var c = 0u; c < RUN / 4u; c++) {
                let k = r * RUN + 4u * c;
                let plain = x4(start, k, matrix.k);
                let values = gained(plain, k);
                squares[t] += dot(plain, plain);
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
    for (var t = 0u; t < TB; t++) {
        squares[t] = rms_scale(squares[t], matrix.k, lane);
    }
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = reduce_add(acc[a], lane) * squares[a % TB];
    }
    for (var a = lane; a < R / PER_OUT * TB; a += WG) {     // the outputs are shared out among the lanes
        let t = a % TB;
        let j = a / TB * PER_OUT;
        if row0 + j < matrix.rows && t0 + t < step.rows {
            store(matrix, t0 + t, row0 + j, acc[j * TB + t], acc[(j + PER_OUT - 1u) * TB + t]);
        }
    }
}
