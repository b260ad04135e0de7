// Where the LANES_PER_ROW lanes that share rows put their SUMS together.
// needs sum: group_sum
const SHUFFLED_LANES = min(LANES_PER_ROW, SUBGROUP);

const_assert WG % LANES_PER_ROW == 0u;
const_assert WG % SUBGROUP == 0u;

var<workgroup> partial: array<f32, WG / SHUFFLED_LANES * SUMS>;

// Adds sum number a of a lane to those beside it.
fn add_partial(value: f32, a: u32, lane: u32) {
    let sum = group_sum(value, SHUFFLED_LANES);
    if lane % SHUFFLED_LANES == 0u {
        partial[lane / SHUFFLED_LANES * SUMS + a] = sum;
    }
}

// Over all lanes that share the rows of a lane.
fn sum_of(a: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var p = 0u; p < LANES_PER_ROW / SHUFFLED_LANES; p++) {
        sum += partial[(lane / LANES_PER_ROW * (LANES_PER_ROW / SHUFFLED_LANES) + p) * SUMS + a];
    }
    return sum;
}
