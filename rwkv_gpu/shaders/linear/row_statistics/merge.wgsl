// The mean of a row of D values, and the inverse of its deviation: by subgroup, then over all.
// needs sum: group_sum
const SUBGROUPS = WG / SUBGROUP;
const MERGING_LANES = min(SUBGROUP, 1u << (32u - countLeadingZeros(SUBGROUPS - 1u)));     // lanes that put together what subgroups have found

var<workgroup> partial_moments: array<vec2f, SUBGROUPS * TB>;   // the mean of what a subgroup has, and squared differences from it

// What subgroups have found of a row of the workgroup.
fn merged_statistics(row: u32, lane: u32) -> vec2f {
    var sum = 0.0;
    for (var c = lane % MERGING_LANES; c < SUBGROUPS; c += MERGING_LANES) {
        sum += partial_moments[row * SUBGROUPS + c].x * count_of(c);
    }
    let mean = group_sum(sum, MERGING_LANES) / f32(D);
    var squares = 0.0;
    for (var c = lane % MERGING_LANES; c < SUBGROUPS; c += MERGING_LANES) {
        let apart = partial_moments[row * SUBGROUPS + c].x - mean;
        squares += partial_moments[row * SUBGROUPS + c].y + apart * apart * count_of(c);
    }
    return vec2f(mean, scale_by(group_sum(squares, MERGING_LANES)));
}

fn scale_by(squares: f32) -> f32 { return inverseSqrt(squares / f32(D) + EPS); }

// How many values of a row the lanes of a subgroup have.
fn count_of(own_subgroup: u32) -> f32 {
    var count = 0u;
    for (var first = own_subgroup * SUBGROUP; first < D4; first += WG) {
        count += min(SUBGROUP, D4 - first);
    }
    return f32(4u * count);
}

fn total(v: vec4f) -> f32 { return (v.x + v.y) + (v.z + v.w); }
