// y[t, m] = s[t, m] · (A[m] · x[t]) in units of row t: further columns of x for products on matrix units
// needs lib/matrix_units/tile: padded4, scale_at
@group(0) @binding(4) var<storage, read> scales: array<f32>;    // [T, M]

const PER_OUT = 1u;

fn epilogue_inputs(matrix: Matrix, t: u32, row: u32) -> vec3f { return vec3f(scales[t * matrix.rows + row], 0.0, 0.0); }

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, epilogue_inputs: vec3f) {
    let unit = scale_at(matrix.x + table.rows * padded4(matrix.k), t);
    y[matrix.y + t * matrix.stride + row] = epilogue_inputs.x * dot / unit;
}
