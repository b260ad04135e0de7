// y[t, m] = out(sum_p x[p, t, m])      for products with split columns (split-K)
// needs linear/table: store; table: matrix_of
@group(0) @binding(2) var<storage, read> x: array<f32>;         // [parts, T, M] of each matrix
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn run(group: u32, lane: u32) {
    let t = group % table.t_blocks;
    let block = group / table.t_blocks;
    if t >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row = ((block - matrix.block) * WG + lane) * PER_OUT;
    if row < matrix.rows {
        store(matrix, t, row, sum_of(matrix, t, row), sum_of(matrix, t, row + PER_OUT - 1u));
    }
}

fn sum_of(matrix: Matrix, t: u32, row: u32) -> f32 {
    var sum = 0.0;
    for (var p = 0u; p < table.parts; p++) {
        sum += x[matrix.x + (p * table.rows + t) * matrix.rows + row];
    }
    return sum;
}
