// The table of matrices as data, so that one pipeline serves every size.
@group(0) @binding(6) var<uniform> table: Table;

// The matrix that a block of rows is of. The starts are read side by side, not one after the other.
fn matrix_of(block: u32) -> Matrix {
    var g = 0u;
    for (var i = 1u; i < 8u; i++) {
        g = select(g, i, i < table.matrices && block >= table.matrix[i].block);
    }
    plane = table.matrix[g].planes;
    is_first_workgroup = block == 0u;
    return table.matrix[g];
}

// Rows of x in this step.
fn rows_now() -> u32 { return step.rows; }
