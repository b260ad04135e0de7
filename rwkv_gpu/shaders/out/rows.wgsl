// y[t, m] = then(W[m] · x[t] + bias) + residual
const PER_OUT = 1u;

fn store(matrix: Matrix, t: u32, row: u32, dot: f32, _second: f32) {
    let i = matrix.y + t * matrix.stride + row;
    y[i] = with_residual(activation(matrix.then, biased(dot, matrix.bias + row)), i);
}
