// y[t, m] = SCALE · then(scale · W[m] · x[t]) · by[t, m] + residual
// needs lib/activation: activation
// needs residual: residual_at, save_state, state_value
@group(0) @binding(4) var<storage, read> by: array<f32>;    // [T, M]

const PER_OUT = 1u;

var<private> stored: f32;       // what a lane has stored last

// What the sum is multiplied by, residual and what becomes of a state, which need not wait for the sum.
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
