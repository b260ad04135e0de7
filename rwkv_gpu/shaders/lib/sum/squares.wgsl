// Where the lanes of a workgroup put together the squares of its TB rows of x.
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
