// Rows of x for products, in a dispatch of their own; the columns of one matrix or of two.

//# quantise_rows
// x as integers, 32 columns to a scale: what gemm_int8 and skinny_gemm multiply      one workgroup per row t of each x
// needs linear/quantising: beside

fn run(group: u32, lane: u32) { beside(group, lane); }

//# round_rows
// x as float16 with a power of two for each row: what matrix units multiply      one workgroup per row t of each x
// needs linear/rounding: beside

fn run(group: u32, lane: u32) { beside(group, lane); }

//# columns/joined
// The columns of two matrices of as many rows, one after the other, and so those of their x: W x + V z is [W V] · [x; z].
// Of the table, the first matrix has the columns of both. SEAM: chunks of 32 columns of W. BEHIND_SEAM: of V.

// The number of a chunk in its matrix, whose planes are those that are read from now on.
fn chunk_of_row(row: u32, chunk: u32, _chunks: u32) -> u32 {
    let of_v = chunk >= SEAM;
    plane = select(table.matrix[0].planes, table.matrix[1].planes, of_v);
    return row * select(SEAM, BEHIND_SEAM, of_v) + chunk - select(0u, SEAM, of_v);
}

//# columns/single: The columns of one matrix.
const SEAM = 0u;        // chunks in front of another one

// The number of a chunk of 32 columns of a row of W, where a row has so many.
fn chunk_of_row(row: u32, chunk: u32, chunks: u32) -> u32 { return row * chunks + chunk; }

//# block: The rows of a matrix and of x that a workgroup on matrix units has, and which part of the columns.
// needs table: matrix_of
var<private> matrix: Matrix;
var<private> row0: u32;
var<private> t0: u32;

fn find_block(group: u32) {
    t0 = group % table.t_blocks * TB;
    let block = min(group / table.t_blocks % table.blocks, table.blocks - 1u);
    part = group / table.t_blocks / table.blocks;
    matrix = matrix_of(block);
    row0 = (block - matrix.block) * R;
}

// Whether there are a row of W and a row of x at these places of its own.
fn is_inside(m: u32, t: u32) -> bool { return t0 + t < step.rows && row0 + m < matrix.rows && part < table.parts; }
