// The columns of two matrices of as many rows, one after the other, and so those of their x: W x + V z is [W V] · [x; z].
// Of the table, the first matrix has the columns of both. SEAM: chunks of 32 columns of W. BEHIND_SEAM: of V.

// The number of a chunk in its matrix, whose planes are those that are read from now on.
fn chunk_of_row(row: u32, chunk: u32, _chunks: u32) -> u32 {
    let of_v = chunk >= SEAM;
    plane = select(table.matrix[0].planes, table.matrix[1].planes, of_v);
    return row * select(SEAM, BEHIND_SEAM, of_v) + chunk - select(0u, SEAM, of_v);
}
