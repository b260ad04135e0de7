// What a workgroup adds to sum i of D.
@group(0) @binding(3) var<storage, read_write> sums: array<atomic<i32>>;    // [2, D]

fn add_to(i: u32, v: f32) {
    let large = round(v / LARGE);
    atomicAdd(&sums[i], i32(round((v - large * LARGE) / SMALL)));
    if large != 0.0 {
        atomicAdd(&sums[D + i], i32(large));
    }
}
