// y[t, m] = then(W[m] · x[t] + bias) + residual
const PER_OUT = 1u;

var<private> stored: f32;       // what a lane has stored last

// Bias, residual and what becomes of a state, which need not wait for the sum.
fn beside(matrix: Matrix, t: u32, row: u32) -> vec3f {
    let i = y_at(matrix, t, row);
    return vec3f(bias_at(matrix.bias + row), residual_at(i), kept_at(i));
}

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, beside: vec3f) {
    let i = y_at(matrix, t, row);
    stored = activation(matrix.then, dot + beside.x) + beside.y;
    y[i] = stored;
    keep(i, beside.z);
}

fn y_at(matrix: Matrix, t: u32, row: u32) -> u32 { return matrix.y + t * matrix.stride + row; }
