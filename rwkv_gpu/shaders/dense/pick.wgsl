// y[r, :] = x[output_rows[r], :]      one workgroup per row r of the outputs
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, D]
@group(0) @binding(2) var<storage, read> output_rows: array<u32>;       // [R]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [R, D]

fn run(group: u32, lane: u32) {
    if group >= step.outputs {
        return;
    }
    let t = output_rows[group];
    for (var d = lane; d < D; d += WG) {
        y[group * D + d] = x[t * D + d];
    }
}
