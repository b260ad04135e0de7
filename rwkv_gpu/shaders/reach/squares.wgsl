// Where the lanes of a workgroup put together the squares of one row of x.
var<workgroup> partial_squares: array<f32, WG / SUBGROUP>;

fn lay_squares(value: f32, lane: u32) {
    if NORMED {
        let sum = reach_add(value, SUBGROUP);
        if lane % SUBGROUP == 0u {
            partial_squares[lane / SUBGROUP] = sum;
        }
    }
}

fn all_squares() -> f32 {
    var sum = 0.0;
    if NORMED {
        for (var s = 0u; s < WG / SUBGROUP; s++) {
            sum += partial_squares[s];
        }
    }
    return sum;
}
