// y[t, m] = then(scale · W[2m] · x[t]) * (second · W[2m + 1] · x[t]): gate and up, interleaved by rows
// needs lib/activation: activation
const PER_OUT = 2u;

var<private> stored: f32;       // what a lane has stored last

fn epilogue_inputs(_matrix: Matrix, _t: u32, _row: u32) -> vec3f { return vec3f(); }

fn store_with(matrix: Matrix, t: u32, row: u32, gate: f32, up: f32, _inputs: vec3f) {
    stored = activation(THEN, bitcast<f32>(matrix.scale) * gate) * (bitcast<f32>(matrix.second) * up);
    y[matrix.y + t * matrix.stride + row / 2u] = stored;
}
