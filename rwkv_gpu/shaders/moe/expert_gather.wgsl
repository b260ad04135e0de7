// y[t, m] = sum_j shares[t, j] · x[t, j, m] + residual[t, m]      one lane per element
// needs next: keep; residual: residual_at; shares: share_at
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, USED, M]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, M]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    var sum = 0.0;
    if i < step.rows * M {
        let t = i / M;
        for (var j = 0u; j < USED; j++) {
            sum = fma(share_at(t * USED + j), x[(t * USED + j) * M + i % M], sum);
        }
        sum += residual_at(i);
        y[i] = sum;
    }
    keep(i, sum);
}
