// Sums over lanes and subgroups.

//# across_subgroups: Adds up the SUMS of the LANES_PER_ROW lanes that share rows, in workgroup memory.
// needs sum: group_sum
const SHUFFLED_LANES = min(LANES_PER_ROW, SUBGROUP);

const_assert WG % LANES_PER_ROW == 0u;
const_assert WG % SUBGROUP == 0u;

var<workgroup> partial: array<f32, WG / SHUFFLED_LANES * SUMS>;

// Adds up sum number a of neighbouring lanes.
fn add_partial(value: f32, a: u32, lane: u32) {
    let sum = group_sum(value, SHUFFLED_LANES);
    if lane % SHUFFLED_LANES == 0u {
        partial[lane / SHUFFLED_LANES * SUMS + a] = sum;
    }
}

// The sum over all lanes that share rows.
fn sum_of(a: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var p = 0u; p < LANES_PER_ROW / SHUFFLED_LANES; p++) {
        sum += partial[(lane / LANES_PER_ROW * (LANES_PER_ROW / SHUFFLED_LANES) + p) * SUMS + a];
    }
    return sum;
}

//# single_lane: Without subgroups, a lane sums over itself only.
const_assert SUBGROUP == 1u;

fn group_sum(v: f32, _width: u32) -> f32 { return v; }

//# squares: Adds up the squares of TB rows of x over the lanes of a workgroup.
// needs sum: group_sum
var<workgroup> partial_squares: array<f32, WG / SUBGROUP * TB>;

fn add_squares(value: f32, t: u32, lane: u32) {
    if NORMED {
        let sum = group_sum(value, SUBGROUP);
        if lane % SUBGROUP == 0u {
            partial_squares[lane / SUBGROUP * TB + t] = sum;
        }
    }
}

fn squares_of(t: u32) -> f32 {
    var sum = 0.0;
    if NORMED {
        for (var s = 0u; s < WG / SUBGROUP; s++) {
            sum += partial_squares[s * TB + t];
        }
    }
    return sum;
}

//# subgroup
// The sum over `width` neighbouring lanes, a power of two, by shuffles. WGSL does not guarantee it, but every driver puts
// neighbouring lanes of a one-dimensional workgroup next to each other in a subgroup.
fn group_sum(v: f32, width: u32) -> f32 {
    var sum = v;
    for (var far = 1u; far < width; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    return sum;
}
