// The table of matrices as a constant of the prelude, for plans of few rows: nothing has to be read before the first weights
// are asked for.
fn matrix_of(block: u32) -> Matrix {
    var found = table.matrix[0];
    found = next_of(found, 1u < table.matrices, table.matrix[1], block);
    found = next_of(found, 2u < table.matrices, table.matrix[2], block);
    found = next_of(found, 3u < table.matrices, table.matrix[3], block);
    found = next_of(found, 4u < table.matrices, table.matrix[4], block);
    found = next_of(found, 5u < table.matrices, table.matrix[5], block);
    found = next_of(found, 6u < table.matrices, table.matrix[6], block);
    found = next_of(found, 7u < table.matrices, table.matrix[7], block);
    plane = found.planes;
    is_first_workgroup = block == 0u;
    return found;
}

fn next_of(found: Matrix, is: bool, next: Matrix, block: u32) -> Matrix {
    var either = found;
    if is && block >= next.block {
        either = next;
    }
    return either;
}

// Rows of x in this step.
fn rows_now() -> u32 {
    if table.rows == 1u {
        return 1u;
    }
    return step.rows;
}
