// The sum over `width` neighbouring lanes, a power of two, by shuffles. WGSL does not promise it, but every driver puts
// neighbours of a workgroup of one dimension side by side in its subgroups.
fn group_sum(v: f32, width: u32) -> f32 {
    var sum = v;
    for (var far = 1u; far < width; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    return sum;
}
