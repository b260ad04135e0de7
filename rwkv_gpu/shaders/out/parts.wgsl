// Sums over a part of the columns, [parts, T, M] of each matrix: linear_join adds them up.
const PER_OUT = 1u;

fn store(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32) {
    y[matrix.y + (part * table.rows + t) * matrix.rows + row] = dot;
}
