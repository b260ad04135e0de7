// Kernels that quantise rows of x for products, and parts that locate columns and blocks of matrices.

//# quantise_rows
// x as integers with a scale for 32 columns, for gemm_int8 and skinny_gemm      one workgroup per row t of each x
// needs linear/quantising: extra_work

fn run(group: u32, lane: u32) { extra_work(group, lane); }

//# round_rows
// x as float16 with a power of two for each row, for matrix units      one workgroup per row t of each x
// needs linear/rounding: extra_work

fn run(group: u32, lane: u32) { extra_work(group, lane); }

//# columns/joined
// The columns of two matrices W and V with equal rows, and of their inputs, joined: W x + V z = [W V] · [x; z].
// In the table, the first matrix has the columns of both. SEAM: number of chunks of 32 columns of W. BEHIND_SEAM: the
// same of V.

// The number of a chunk in its own matrix; later reads use the planes of that matrix.
fn chunk_of_row(row: u32, chunk: u32, _chunks: u32) -> u32 {
    let of_v = chunk >= SEAM;
    plane = select(table.matrix[0].planes, table.matrix[1].planes, of_v);
    return row * select(SEAM, BEHIND_SEAM, of_v) + chunk - select(0u, SEAM, of_v);
}

//# columns/single: The columns of one matrix.
const SEAM = 0u;        // there is no second matrix

// The number of a chunk of 32 columns of a row of W, given the number of chunks per row.
fn chunk_of_row(row: u32, chunk: u32, chunks: u32) -> u32 { return row * chunks + chunk; }

//# block: The rows of a matrix and of x, and the part of the columns, of a workgroup on matrix units.
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

// Whether the workgroup's rows of these numbers exist in W and in x.
fn is_inside(m: u32, t: u32) -> bool { return t0 + t < step.rows && row0 + m < matrix.rows && part < table.parts; }
