// y[t, h] = x[t, h], cut to TO numbers or with zeros behind its FROM      one lane per element of y
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, H, FROM]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, H, TO]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * H * TO {
        return;
    }
    let d = i % TO;
    y[i] = select(0.0, x[i / TO * FROM + min(d, FROM - 1u)], d < FROM);
}
