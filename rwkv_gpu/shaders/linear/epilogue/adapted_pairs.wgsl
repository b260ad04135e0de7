// y[t, m] = then(W[2m] · x[t] + bias) * (W[2m + 1] · x[t] + bias): as gated_pairs, with what adapters add to gate and up
// needs bias: bias_at, bias_rest
// needs lib/activation: activation
const PER_OUT = 2u;

var<private> stored: f32;       // what a lane has stored last

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
