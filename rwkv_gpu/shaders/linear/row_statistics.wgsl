// Statistics of rows that a product norms: computed, loaded, or emitted for the next product.

//# compute: Mean and deviation of the row x: by subgroup, then over all.
// needs linear/row_statistics/merge: merged_statistics, scale_by, total; row statistics: count_of; sum: group_sum
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row per lane
const IN_REGISTERS = MINE <= 5u;                // true if a lane keeps them in registers while the mean is computed

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

//# emit
// Emits the mean of the rows of y that a workgroup has stored, and the sum of squared differences from it, for a later norm.
// Both sums are of differences from the first row, so that one pass computes both without loss of precision.
// needs sum: group_sum
@group(0) @binding(14) var<storage, read_write> statistics: array<vec2f>;  // one for each block of rows

var<workgroup> stored_values: array<f32, BLOCK>;

fn emit_statistics(row: u32, stores: bool, block: u32, rows: u32, lane: u32) {
    if !IN_LANES {
        if stores {
            stored_values[row] = stored;
        }
        workgroupBarrier();
    }
    if lane < SUBGROUP {
        let count = select(min(BLOCK, rows - block * BLOCK), BLOCK, rows % BLOCK == 0u);
        var first: f32;
        if IN_LANES {
            first = subgroupBroadcastFirst(stored);
        } else {
            first = stored_values[0];
        }
        var sum = 0.0;
        var squares = 0.0;
        for (var turn = 0u; turn < (BLOCK + SUBGROUP - 1u) / SUBGROUP; turn++) {
            let n = turn * SUBGROUP + lane;
            var value = stored;
            if !IN_LANES {
                value = stored_values[min(n, BLOCK - 1u)];
            }
            let apart = select(0.0, value - first, n < count);
            sum += apart;
            squares += apart * apart;
        }
        sum = group_sum(sum, SUBGROUP);
        squares = group_sum(squares, SUBGROUP);
        if lane == 0u {
            let mean = sum / f32(count);
            statistics[block] = vec2f(first + mean, squares - sum * mean);
        }
    }
}

//# load
// Mean and deviation of the row x, from the statistics that the workgroups of its producer emitted. Each subgroup computes both.
// needs sum: group_sum
@group(0) @binding(12) var<storage, read> statistics: array<vec2f>;    // [STATISTICS]

const EACH = (STATISTICS + SUBGROUP - 1u) / SUBGROUP;

fn find_statistics(lane: u32) {
    let own = lane % SUBGROUP;
    var found: array<vec2f, EACH>;
    for (var i = 0u; i < EACH; i++) {
        found[i] = statistics[min(i * SUBGROUP + own, STATISTICS - 1u)];
    }
    // Both sums are over differences from the first mean, so one pass is enough and no precision is lost.
    let first = subgroupShuffle(found[0].x, 0u);
    var sum = 0.0;
    var squares = 0.0;
    for (var i = 0u; i < EACH; i++) {
        let count = count_of(i * SUBGROUP + own);
        let apart = found[i].x - first;
        sum += apart * count;
        squares += select(0.0, found[i].y + apart * apart * count, count > 0.0);
    }
    let off = group_sum(sum, SUBGROUP) / f32(D);
    let variance = group_sum(squares, SUBGROUP) / f32(D) - off * off;
    centre = vec2f(first + off, inverseSqrt(variance + EPS));
}

// The number of values that one partial statistic covers.
fn count_of(part: u32) -> f32 { return f32(min(max(part * STATISTICS_ROWS, D) - part * STATISTICS_ROWS, STATISTICS_ROWS)); }

//# merge: The mean of a row of D values, and the inverse of its deviation: by subgroup, then over all.
// needs sum: group_sum
const SUBGROUPS = WG / SUBGROUP;
const MERGING_LANES = min(SUBGROUP, 1u << (32u - countLeadingZeros(SUBGROUPS - 1u)));     // lanes that merge the statistics of subgroups

var<workgroup> partial_moments: array<vec2f, SUBGROUPS * TB>;   // by subgroup: the mean of its values, and the sum of squared differences from it

// The merged statistics of all subgroups for a row of the workgroup.
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

// The number of values of a row that the lanes of a subgroup have.
fn count_of(own_subgroup: u32) -> f32 {
    var count = 0u;
    for (var first = own_subgroup * SUBGROUP; first < D4; first += WG) {
        count += min(SUBGROUP, D4 - first);
    }
    return f32(4u * count);
}

fn total(v: vec4f) -> f32 { return (v.x + v.y) + (v.z + v.w); }

//# no_emit
fn emit_statistics(_row: u32, _stores: bool, _block: u32, _rows: u32, _lane: u32) {}
