// Epilogues of matrix products: parts that process the sums.

//# adapted_pairs
// y[t, m] = then(W[2m] · x[t] + bias) * (W[2m + 1] · x[t] + bias): as gated_pairs, plus the adapters of gate and up
// needs bias: bias_at, bias_rest; lib/activation: activation
const PER_OUT = 2u;

var<private> stored: f32;       // the value that the lane stored last

fn epilogue_inputs(matrix: Matrix, t: u32, row: u32) -> vec3f {
    let i = matrix.bias + row;
    return vec3f(bias_at(i, t), bias_at(i + 1u, t), 0.0);
}

fn store_with(matrix: Matrix, t: u32, row: u32, gate: f32, up: f32, epilogue_inputs: vec3f) {
    let i = matrix.bias + row;
    let opened = activation(THEN, gate + epilogue_inputs.x + bias_rest(i, t));
    stored = opened * (up + epilogue_inputs.y + bias_rest(i + 1u, t));
    y[matrix.y + t * matrix.stride + row / 2u] = stored;
}

//# adapter_columns: y[t, m] = s[t, m] · (A[m] · x[t]) in units of row t: further columns of x for products on matrix units
// needs lib/matrix_units/tile: padded4, scale_at
@group(0) @binding(4) var<storage, read> scales: array<f32>;    // [T, M]

const PER_OUT = 1u;

fn epilogue_inputs(matrix: Matrix, t: u32, row: u32) -> vec3f { return vec3f(scales[t * matrix.rows + row], 0.0, 0.0); }

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, epilogue_inputs: vec3f) {
    let unit = scale_at(matrix.x + table.rows * padded4(matrix.k), t);
    y[matrix.y + t * matrix.stride + row] = epilogue_inputs.x * dot / unit;
}

//# bias
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [M]

fn bias_at(i: u32, _t: u32) -> f32 { return bias[i]; }
fn bias_rest(_i: u32, _t: u32) -> f32 { return 0.0; }

//# gated_pairs: y[t, m] = then(scale · W[2m] · x[t]) * (second · W[2m + 1] · x[t]): gate and up, interleaved by rows
// needs lib/activation: activation
const PER_OUT = 2u;

var<private> stored: f32;       // the value that the lane stored last

fn epilogue_inputs(_matrix: Matrix, _t: u32, _row: u32) -> vec3f { return vec3f(); }

fn store_with(matrix: Matrix, t: u32, row: u32, gate: f32, up: f32, _inputs: vec3f) {
    stored = activation(THEN, bitcast<f32>(matrix.scale) * gate) * (bitcast<f32>(matrix.second) * up);
    y[matrix.y + t * matrix.stride + row / 2u] = stored;
}

//# no_bias
fn bias_at(_i: u32, _t: u32) -> f32 { return 0.0; }
fn bias_rest(_i: u32, _t: u32) -> f32 { return 0.0; }

//# no_quantise: Each output is written separately.
const OWNED = 0u;

fn quantise_block(_matrix: Matrix, _t0: u32, _start: u32, _lane: u32) {}

//# no_residual
fn residual_at(_i: u32) -> f32 { return 0.0; }
fn state_value(_i: u32) -> f32 { return 0.0; }
fn save_state(_i: u32, _x: f32) {}

//# partial_sums: Sums over a part of the columns, [parts, T, M] per matrix, which splitk_reduce adds up.
const PER_OUT = 1u;

fn epilogue_inputs(_matrix: Matrix, _t: u32, _row: u32) -> vec3f { return vec3f(); }

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, _inputs: vec3f) {
    y[matrix.y + (part * table.rows + t) * matrix.rows + row] = dot;
}

//# quantise
// y[t, m] = SCALE · then(scale · W[m] · x[t]), also written as integers: eight lanes convert a chunk of 32 rows of W
// needs lib/activation: activation; lib/store_quantised: store_quantised; table: rows_now
@group(0) @binding(12) var<storage, read_write> quantised: array<u32>;

const PER_OUT = 1u;
const OWN_ROWS = OWNED * BLOCK;

const_assert OWN_ROWS % 32u == 0u;
const_assert WG % 8u == 0u;

var<workgroup> found: array<f32, TB * OWN_ROWS>;

fn epilogue_inputs(_matrix: Matrix, _t: u32, _row: u32) -> vec3f { return vec3f(); }

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, _inputs: vec3f) {
    let value = SCALE * activation(matrix.then, bitcast<f32>(matrix.scale) * dot);
    y[matrix.y + t * matrix.stride + row] = value;
    found[t % TB * OWN_ROWS + row % OWN_ROWS] = value;
}

// Stores integers of rows t0 .. t0 + TB, from a row of W on.
fn quantise_block(matrix: Matrix, t0: u32, start: u32, lane: u32) {
    workgroupBarrier();
    for (var e = lane; e < TB * OWN_ROWS / 4u; e += WG) {
        let t = t0 + e / (OWN_ROWS / 4u);
        let m = start + e % (OWN_ROWS / 4u) * 4u;
        let values = vec4f(found[4u * e], found[4u * e + 1u], found[4u * e + 2u], found[4u * e + 3u]);
        store_quantised(values, 0u, t, (matrix.y + m) / 4u, matrix.stride / 32u, 1.0, m < matrix.rows && t < rows_now());
    }
}

//# residual
@group(0) @binding(5) var<storage, read> residual: array<f32>;  // in the layout of y

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(_i: u32) -> f32 { return 0.0; }
fn save_state(_i: u32, _x: f32) {}

//# residual_save_state
// Earlier products have normed the residual. The normed row is the new state of the sequence, which can be saved here, because all
// readers of the old state have run.
@group(0) @binding(5) var<storage, read> residual: array<f32>;      // [M]
@group(0) @binding(10) var<storage, read_write> shift_state: array<f32>; // [states, M]
@group(0) @binding(11) var<uniform> segment: Segment;
@group(0) @binding(13) var<storage, read> normed_row: array<f32>;       // [M]

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(i: u32) -> f32 { return normed_row[i]; }
fn save_state(i: u32, x: f32) { shift_state[segment.written * table.matrix[0].stride + i] = x; }

//# residual_save_state_rows
// Earlier products have normed the residual. The normed row is the new state of its sequence, which can be saved here, because all
// readers of the old state have run. Row t is of segment t.
@group(0) @binding(5) var<storage, read> residual: array<f32>;      // [T, M]
@group(0) @binding(10) var<storage, read_write> shift_state: array<f32>; // [states, M]
@group(0) @binding(11) var<storage, read> segment: array<Segment>;  // [T]
@group(0) @binding(13) var<storage, read> normed_row: array<f32>;       // [T, M]

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(i: u32) -> f32 { return normed_row[i]; }
fn save_state(i: u32, x: f32) {
    let width = table.matrix[0].stride;
    shift_state[segment[i / width].written * width + i % width] = x;
}

//# residual_to_norm: The residual for a sum that is normed next, together with the gain of the norm.
@group(0) @binding(5) var<storage, read> residual: array<f32>;  // in the layout of y
@group(0) @binding(14) var<storage, read> next_gain: array<f32>;    // [M]

var<private> gain: f32;     // the gain for the column that the lane stored last

fn residual_at(i: u32) -> f32 { return residual[i]; }
fn state_value(i: u32) -> f32 { return next_gain[i % table.matrix[0].stride]; }
fn save_state(_i: u32, x: f32) { gain = x; }

//# rows: y[t, m] = SCALE · then(scale · W[m] · x[t] + bias) + residual
// needs bias: bias_at, bias_rest; lib/activation: activation; residual: residual_at, save_state, state_value
const PER_OUT = 1u;

var<private> stored: f32;       // the value that the lane stored last

// Inputs of the epilogue that do not depend on the sum: bias, residual and state.
fn epilogue_inputs(matrix: Matrix, t: u32, row: u32) -> vec3f {
    let i = y_at(matrix, t, row);
    return vec3f(bias_at(matrix.bias + row, t), residual_at(i), state_value(i));
}

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, epilogue_inputs: vec3f) {
    let i = y_at(matrix, t, row);
    let sum = fma(bitcast<f32>(matrix.scale), dot, epilogue_inputs.x) + bias_rest(matrix.bias + row, t);
    stored = SCALE * activation(matrix.then, sum) + epilogue_inputs.y;
    y[i] = stored;
    save_state(i, epilogue_inputs.z);
}

fn y_at(matrix: Matrix, t: u32, row: u32) -> u32 { return matrix.y + t * matrix.stride + row; }

//# scaled_rows: y[t, m] = SCALE · then(scale · W[m] · x[t]) · by[t, m] + residual
// needs lib/activation: activation; residual: residual_at, save_state, state_value
@group(0) @binding(4) var<storage, read> by: array<f32>;    // [T, M]

const PER_OUT = 1u;

var<private> stored: f32;       // the value that the lane stored last

// Inputs of the epilogue that do not depend on the sum: factor, residual and state.
fn epilogue_inputs(matrix: Matrix, t: u32, row: u32) -> vec3f {
    let i = y_at(matrix, t, row);
    return vec3f(by[i], residual_at(i), state_value(i));
}

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, epilogue_inputs: vec3f) {
    let i = y_at(matrix, t, row);
    stored = SCALE * activation(matrix.then, bitcast<f32>(matrix.scale) * dot) * epilogue_inputs.x + epilogue_inputs.y;
    y[i] = stored;
    save_state(i, epilogue_inputs.z);
}

fn y_at(matrix: Matrix, t: u32, row: u32) -> u32 { return matrix.y + t * matrix.stride + row; }
