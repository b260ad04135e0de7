// y = x      one lane per vec4
@group(0) @binding(1) var<storage, read> x: array<vec4f>;               // [T, D / 4]
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;         // [T, D / 4]

const_assert D % 4u == 0u;

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * (D / 4u) {
        y[i] = x[i];
    }
}
