// Mean and deviation of the row x: by subgroup, then over all.
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row for a lane
const KEPT = MINE <= 5u;                // whether it keeps them in registers while their mean is found

fn look(lane: u32) {
    let crew = lane / SUBGROUP;
    var kept: array<vec4f, min(MINE, 5u)>;
    var sum = 0.0;
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            let here = x[d];
            if KEPT {
                kept[i] = here;
            }
            sum += total(here);
        }
    }
    let mean = reach_add(sum, SUBGROUP) / max(1.0, count_of(crew));
    var squares = 0.0;
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            var here = kept[i % 5u];
            if !KEPT {
                here = x[d];
            }
            squares += dot(here - mean, here - mean);
        }
    }
    squares = reach_add(squares, SUBGROUP);
    if CREWS > 1u {
        if lane % SUBGROUP == 0u {
            partial_moments[crew] = vec2f(mean, squares);
        }
        workgroupBarrier();
        centre = met(0u, lane);
    } else {
        centre = vec2f(mean, scale_by(squares));
    }
}
