// Sums of four tokens.

//# lane: Sums of four tokens that one lane holds completely.
const_assert SPLIT == 1u;

fn sum_of(sums: vec4f, _part: u32, n: u32) -> f32 { return sums[n]; }

//# subgroup
// Sums of four tokens over SPLIT neighbouring lanes. Each lane completes one token: with three shuffles for four lanes,
// with more shuffles for more lanes.
const_assert SPLIT >= 4u && (SPLIT & (SPLIT - 1u)) == 0u;

fn sum_of(sums: vec4f, part: u32, _n: u32) -> f32 {
    let odd = part % 2u == 1u;
    let pair = select(sums.xz, sums.yw, odd) + subgroupShuffleXor(select(sums.yw, sums.xz, odd), 1u);
    let high = part % 4u >= 2u;
    var sum = select(pair.x, pair.y, high) + subgroupShuffleXor(select(pair.y, pair.x, high), 2u);
    for (var far = 4u; far < SPLIT; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    return sum;
}
