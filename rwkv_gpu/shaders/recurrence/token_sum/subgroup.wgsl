// Sums of four tokens over four neighbouring lanes: each completes one token, by three shuffles.
const_assert SPLIT == 4u;

fn own_token(part: u32, _n: u32) -> u32 { return part; }

fn sum_of(sums: vec4f, part: u32, _n: u32) -> f32 {
    let odd = part % 2u == 1u;
    let pair = select(sums.xz, sums.yw, odd) + subgroupShuffleXor(select(sums.yw, sums.xz, odd), 1u);
    let high = part >= 2u;
    return select(pair.x, pair.y, high) + subgroupShuffleXor(select(pair.y, pair.x, high), 2u);
}
