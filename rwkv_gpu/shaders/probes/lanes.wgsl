// met[far, i] = the lane whose value lane i gets from 2^far lanes away in its subgroup      one workgroup
@group(0) @binding(0) var<storage, read_write> met: array<u32>;    // [FARS, 64]

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var far = 0u; far < FARS; far++) {
        met[far * 64u + lane] = subgroupShuffleXor(lane, 1u << far);
    }
}
