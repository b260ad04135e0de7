// y[t, m] = out(W[m, :] · x[t, :])      a workgroup for R rows m and TB rows t, on matrix units
// needs fragments of a subgroup: multiply; lib/matrix_units/tile: padded4, scale_at; epilogue: store_with
// needs linear/block: find_block, is_inside
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> x_scales: array<f32, TB>;    // the factors of the sums of each row of x

fn run(group: u32, lane: u32) {
    find_block(group);
    if lane == 0u {
        let steps = (matrix.k + COLUMNS - 1u) / COLUMNS;
        let on = t0 < step.rows && part < table.parts;
        let end = (part + 1u) * steps / table.parts;
        bounds = select(vec4u(), vec4u(part * steps / table.parts, end, end + select(0u, ADAPTER_STEPS, part == 0u), 0u), on);
    }
    let exponents = matrix.x + table.rows * padded4(matrix.k);
    for (var r = lane; r < TB; r += WG) {
        x_scales[r] = scale_at(exponents, min(t0 + r, step.rows - 1u));
    }
    multiply(lane);     // begins with a barrier
}

fn runs_of_row() -> u32 { return (matrix.k + 31u) / 32u * (32u / RUN); }

fn w_run(row: u32, run: u32) -> u32 { return min(row0 + row, matrix.rows - 1u) * runs_of_row() + run; }

fn x_width4() -> u32 { return padded4(matrix.k); }

fn x_place(row: u32, four: u32) -> u32 { return matrix.x + min(t0 + row, step.rows - 1u) * x_width4() + four; }

fn put(m: u32, t: u32, first: f32, second: f32, wanted: vec3f) {
    if is_inside(m, t) {
        store_with(matrix, t0 + t, row0 + m, x_scales[t] * first, x_scales[t] * second, wanted);
    }
}
