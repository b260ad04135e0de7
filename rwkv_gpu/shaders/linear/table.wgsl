// The table of the matrices of a dispatch: one, a shard of one, or several.
// needs epilogue: epilogue_inputs, store_with
struct Matrix {
    block: u32,     // its first block of rows among all of the dispatch
    blocks: u32,    // how many it has
    rows: u32,
    k: u32,
    x: u32,         // where its input starts, in floats
    y: u32,         // where its output starts, in floats
    stride: u32,    // of a row of y
    bias: u32,      // where its bias starts
    then: u32,      // its activation
    scale: u32,     // that sums are multiplied by, the bits of a float; of gate, where its rows and those of up stand in turns
    second: u32,    // and of up
    planes: vec4u,  // where its planes start, in vec4s
}

struct Table {
    matrices: u32,
    blocks: u32,    // of rows of W, over all matrices
    t_blocks: u32,  // of rows of x
    rows: u32,      // of x that a plan is made for
    parts: u32,     // that the columns are cut into
    matrix: array<Matrix, 8>,
}

var<private> plane: vec4u;
var<private> part: u32;    // of the columns, where a product is cut along them
var<private> is_first_workgroup: bool;   // whether a workgroup has the first block of rows of W
var<private> first_row: u32;    // of x, for a workgroup of several rows
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
