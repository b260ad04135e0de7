// groups = experts / SIZE, scaled = SCALE · shares      one lane per choice
@group(0) @binding(1) var<storage, read> experts: array<u32>;           // [T, USED]
@group(0) @binding(2) var<storage, read> shares: array<f32>;            // [T, USED]
@group(0) @binding(3) var<storage, read_write> groups: array<u32>;      // [T, USED]
@group(0) @binding(4) var<storage, read_write> scaled: array<f32>;      // [T, USED]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * USED {
        groups[i] = experts[i] / SIZE;
        scaled[i] = SCALE * shares[i];
    }
}
