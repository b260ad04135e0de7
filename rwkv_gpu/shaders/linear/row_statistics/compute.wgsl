// Mean and deviation of the row x: by subgroup, then over all.
// needs linear/row_statistics/merge: merged_statistics, scale_by, total
// needs row statistics: count_of
// needs sum: group_sum
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row for a lane
const IN_REGISTERS = MINE <= 5u;                // whether it keeps them in registers while their mean is found

fn find_statistics(lane: u32) {
    let own_subgroup = lane / SUBGROUP;
    var held_values: array<vec4f, min(MINE, 5u)>;
    var sum = 0.0;
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            let here = x[d];
            if IN_REGISTERS {
                held_values[i] = here;
            }
            sum += total(here);
        }
    }
    let mean = group_sum(sum, SUBGROUP) / max(1.0, count_of(own_subgroup));
    var squares = 0.0;
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            var here = held_values[i % 5u];
            if !IN_REGISTERS {
                here = x[d];
            }
            squares += dot(here - mean, here - mean);
        }
    }
    squares = group_sum(squares, SUBGROUP);
    if SUBGROUPS > 1u {
        if lane % SUBGROUP == 0u {
            partial_moments[own_subgroup] = vec2f(mean, squares);
        }
        workgroupBarrier();
        centre = merged_statistics(0u, lane);
    } else {
        centre = vec2f(mean, scale_by(squares));
    }
}
