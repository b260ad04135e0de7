// The sum over the lanes of a row of S. WGSL does not promise it, but every driver puts neighbours of a workgroup of
// one dimension side by side in its subgroups, and those are no smaller than SPLIT.
const_assert ((SPLIT & (SPLIT - 1u)) == 0u);

fn row_add(v: Rows) -> Rows {
    var sum = v;
    for (var far = 1u; far < SPLIT; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    return sum;
}
