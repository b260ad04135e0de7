// y[t, d] = x[t, d] · by[t, d / PART] + residual[t, d]      one lane per element
// needs residual: residual_at
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> by: array<f32>;        // [T, D / PART]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * D {
        y[i] = fma(x[i], by[i / PART], residual_at(i));
    }
}
