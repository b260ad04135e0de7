// y[t, m] = then(W[m] · x[t] + bias) + residual
const PER_OUT = 1u;

// Bias and residual, which need not wait for the sum.
fn beside(matrix: Matrix, t: u32, row: u32) -> vec2f {
    return vec2f(bias_at(matrix.bias + row), residual_at(y_at(matrix, t, row)));
}

fn store_with(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32, beside: vec2f) {
    let i = y_at(matrix, t, row);
    y[i] = activation(matrix.then, dot + beside.x) + beside.y;
    keep(i, beside.y);
}

fn y_at(matrix: Matrix, t: u32, row: u32) -> u32 { return matrix.y + t * matrix.stride + row; }
