// The table of the matrices of a dispatch: one, a shard of one, or several.
// needs epilogue: epilogue_inputs, store_with
struct Matrix {
    block: u32,     // the first block of rows of this matrix, counted over the whole dispatch
    blocks: u32,    // the number of its blocks
    rows: u32,
    k: u32,
    x: u32,         // the start of the input, in floats
    y: u32,         // the start of the output, in floats
    stride: u32,    // the length of a row of y
    bias: u32,      // the start of the bias
    then: u32,      // the activation
    scale: u32,     // the factor of sums, as the bits of a float; for alternating rows of gate and up, the factor of gate
    second: u32,    // the factor of up
    planes: vec4u,  // the start of each plane, in vec4s
}

struct Table {
    matrices: u32,
    blocks: u32,    // blocks of rows of W, over all matrices
    t_blocks: u32,  // blocks of rows of x
    rows: u32,      // rows of x for which the plan was recorded
    parts: u32,     // number of parts of the columns (split-K)
    matrix: array<Matrix, 8>,
}

var<private> plane: vec4u;
var<private> part: u32;    // the workgroup's part of the columns (split-K)
var<private> is_first_workgroup: bool;   // true if the workgroup has the first block of rows of W
var<private> first_row: u32;    // the first row of x of the workgroup
var<private> own_lane: u32;

// A part `linear/epilogue/...` processes the sum; `epilogue_inputs` are its other inputs, which can be loaded early.
fn store(matrix: Matrix, t: u32, row: u32, first: f32, second: f32) {
    store_with(matrix, t, row, first, second, epilogue_inputs(matrix, t, row));
}

//# constant
// The table of matrices as a constant of the prelude, for plans of few rows: the first weights can be loaded without a
// read before them.
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

//# uniform: The table of matrices as data, so that one pipeline serves every size.
@group(0) @binding(6) var<uniform> table: Table;

// The matrix to which a block of rows belongs. The starts are read in parallel, not one after the other.
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
