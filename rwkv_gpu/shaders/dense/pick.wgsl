// y[r, :] = x[output_rows[r], :]      one workgroup per row r of the outputs
@group(0) @binding(1) var<storage, read> x: array<vec4f>;               // [T, D / 4]
@group(0) @binding(2) var<storage, read> output_rows: array<u32>;       // [R]
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;         // [R, D / 4]

const_assert D % 4u == 0u;

fn run(group: u32, lane: u32) {
    if group >= step.outputs {
        return;
    }
    let t = output_rows[group];
    for (var d = lane; d < D / 4u; d += WG) {
        y[group * (D / 4u) + d] = x[t * (D / 4u) + d];
    }
}
