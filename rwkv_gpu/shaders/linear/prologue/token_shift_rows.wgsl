// ROWS rows x, each of a sequence of its own, normed and mixed with the row before it while they are read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous as the state holds it, or 0 for a fresh sequence
// needs linear/row_statistics/merge: merged_statistics, total
// needs normed row: store_normed
// needs row statistics: count_of
// needs sum: group_sum
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [ROWS, D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> shift_state: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<storage, read> segment: array<Segment>;  // [ROWS]

const READS_X_EARLY = false;                    // x is not to be read before the look at it
const D4 = D / 4u;

const_assert D % 4u == 0u;

var<private> centre: array<vec2f, TB>;      // of each row of a workgroup, its mean and the inverse of its deviation

// `start` says which row of `mix` it is for, and which row of x: as if rows that were mixed lay there.
fn x4(start: u32, k: u32, _width: u32) -> vec4f {
    let d = k / 4u;
    let t = start / D % ROWS;
    var own = centre[0];
    for (var other = 1u; other < TB; other++) {
        own = select(own, centre[other], t == first_row + other);
    }
    let here = (x[t * D4 + d] - own.x) * own.y * gain[d] + shift[d];
    store_normed(t * D4 + d, here);
    return here + (select(shift_state[segment[t].source * D4 + d], vec4f(), segment[t].start == 0u) - here) * mix[start / (D * ROWS) * D4 + d];
}

// Finds mean and deviation of a workgroup's rows: by subgroup, then over all.
fn find_statistics(lane: u32) {
    let own_subgroup = lane / SUBGROUP;
    var means: array<f32, TB>;
    for (var own = 0u; own < TB; own++) {
        let t = min(first_row + own, ROWS - 1u);
        var sum = 0.0;
        for (var d = lane; d < D4; d += WG) {
            sum += total(x[t * D4 + d]);
        }
        means[own] = group_sum(sum, SUBGROUP) / max(1.0, count_of(own_subgroup));
    }
    for (var own = 0u; own < TB; own++) {
        let t = min(first_row + own, ROWS - 1u);
        var squares = 0.0;
        for (var d = lane; d < D4; d += WG) {
            let here = x[t * D4 + d] - means[own];
            squares += dot(here, here);
        }
        squares = group_sum(squares, SUBGROUP);
        if lane % SUBGROUP == 0u {
            partial_moments[own * SUBGROUPS + own_subgroup] = vec2f(means[own], squares);
        }
    }
    workgroupBarrier();
    for (var own = 0u; own < TB; own++) {
        centre[own] = merged_statistics(own, lane);
    }
}
