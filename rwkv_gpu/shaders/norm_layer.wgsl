// y[t, :] = layer_norm(x[t, :]) * weight + bias      one workgroup per row t
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]

fn run(group: u32, lane: u32) {
    if group < step.rows {
        norm_row(group, lane);
    }
}

fn value_at(t: u32, d: u32) -> f32 { return x[t * D + d]; }
