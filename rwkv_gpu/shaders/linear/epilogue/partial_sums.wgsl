// Sums over a part of the columns, [parts, T, M] of each matrix: splitk_reduce adds them up.
const PER_OUT = 1u;

fn epilogue_inputs(_matrix: Matrix, _t: u32, _row: u32) -> vec3f { return vec3f(); }

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, _inputs: vec3f) {
    y[matrix.y + (part * table.rows + t) * matrix.rows + row] = dot;
}
