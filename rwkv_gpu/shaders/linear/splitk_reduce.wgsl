// y[t, m] = out(sum_p x[p, t, m])      for products with split columns (split-K)
//
// A lane has column m of OF_LANE rows, so that the loads of several sums are in flight.
// needs linear/table: store; table: matrix_of
@group(0) @binding(2) var<storage, read> x: array<f32>;         // [parts, T, M] of each matrix
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn run(group: u32, lane: u32) {
    let t = group % table.t_blocks * OF_LANE;
    let block = group / table.t_blocks;
    if t >= step.rows || block >= table.blocks {
        return;
    }
    let matrix = matrix_of(block);
    let row = ((block - matrix.block) * WG + lane) * PER_OUT;
    if row >= matrix.rows {
        return;
    }
    var sums: array<vec2f, OF_LANE>;
    for (var p = 0u; p < table.parts; p++) {
        for (var i = 0u; i < OF_LANE; i++) {
            let at = matrix.x + (p * table.rows + min(t + i, step.rows - 1u)) * matrix.rows + row;
            sums[i] += vec2f(x[at], x[at + PER_OUT - 1u]);
        }
    }
    for (var i = 0u; i < OF_LANE; i++) {
        if t + i < step.rows {
            store(matrix, t + i, row, sums[i].x, sums[i].y);
        }
    }
}
