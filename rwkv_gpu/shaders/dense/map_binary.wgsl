// y = binary(x, z), z from column FIRST on, REPEATED columns of it again and again      one lane per element
// needs binary: binary
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> z: array<f32>;         // [T, Z]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * D {
        y[i] = binary(x[i], z[i / D * Z + FIRST + i % D % REPEATED]);
    }
}
