// y[t, m] = out(W[m, :] · x[t, :])      as linear_vec, with x as Q8_1 and dot products of signed bytes
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read> x: array<vec4u>;       // runs of 32 by quantise_rows, 3 vec4s each
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const PARTS = 32u / RUN;    // short runs that share a scale of x

fn run(group: u32, lane: u32) {
    let t0 = group % table.t_blocks * TB;
    let block = group / table.t_blocks;
    if t0 >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row0 = (block - matrix.block) * R;
    let chunks = matrix.k / 32u;
    var acc: array<f32, R * TB>;
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = 0.0;
    }
    for (var c = lane; c < chunks; c += WG) {
        var q: array<array<u32, RUN / 4u>, R * PARTS>;
        var scale: array<vec2f, R * PARTS>;
        for (var j = 0u; j < R; j++) {
            let i = (min(row0 + j, matrix.rows - 1u) * chunks + c) * PARTS;
            for (var p = 0u; p < PARTS; p++) {
                q[j * PARTS + p] = run_packed(i + p);
                scale[j * PARTS + p] = run_scale(i + p);
            }
        }
        for (var t = 0u; t < TB; t++) {
            let i = ((matrix.x + min(t0 + t, step.rows - 1u) * matrix.k) / 32u + c) * 3u;
            let low = x[i];
            let high = x[i + 1u];
            let d = bitcast<f32>(x[i + 2u].x);
            for (var p = 0u; p < PARTS; p++) {
                var sums = 0;
                for (var n = 0u; n < RUN / 4u; n++) {
                    sums += dot4I8Packed(word_of(low, high, p * (RUN / 4u) + n), 0x01010101u);
                }
                for (var j = 0u; j < R; j++) {
                    var dots = 0;
                    for (var n = 0u; n < RUN / 4u; n++) {
                        dots += dot4I8Packed(word_of(low, high, p * (RUN / 4u) + n), q[j * PARTS + p][n]);
                    }
                    let s = scale[j * PARTS + p];
                    acc[j * TB + t] += d * (s.x * f32(dots) + s.y * f32(sums));
                }
            }
        }
    }
    for (var a = 0u; a < R * TB; a++) {
        acc[a] = reduce_add(acc[a], lane);
    }
    for (var a = lane; a < R / PER_OUT * TB; a += WG) {
        let t = a % TB;
        let j = a / TB * PER_OUT;
        if row0 + j < matrix.rows && t0 + t < step.rows {
            store(matrix, t0 + t, row0 + j, acc[j * TB + t], acc[(j + PER_OUT - 1u) * TB + t]);
        }
    }
}

fn word_of(low: vec4u, high: vec4u, n: u32) -> u32 {
    if n < 4u {
        return low[n];
    }
    return high[n - 4u];
}
