// The matrices of one dispatch: one, a shard of one, or several that run together.
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

// What becomes of a sum is said by a part `linear/epilogue/...`; `epilogue_inputs` is what it wants beside the sum, and may be asked for early.
fn store(matrix: Matrix, t: u32, row: u32, first: f32, second: f32) {
    store_with(matrix, t, row, first, second, epilogue_inputs(matrix, t, row));
}
