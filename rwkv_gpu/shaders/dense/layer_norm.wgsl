// y[t, :] = layer_norm(x[t, :]) * weight + bias      one workgroup per row t
// needs dense/norm/row: norm_row
// needs rows: x4
fn run(group: u32, lane: u32) {
    if group < step.rows {
        norm_row(group, lane);
    }
}

fn four_at(t: u32, d: u32) -> vec4f { return x4(t * D, 4u * d, D); }
