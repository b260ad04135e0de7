// Mean and deviation of the row x, from what the workgroups that wrote it have told of their rows: each subgroup for itself.
// needs sum: group_sum
@group(0) @binding(12) var<storage, read> statistics: array<vec2f>;    // [STATISTICS]

const EACH = (STATISTICS + SUBGROUP - 1u) / SUBGROUP;

fn find_statistics(lane: u32) {
    let own = lane % SUBGROUP;
    var found: array<vec2f, EACH>;
    for (var i = 0u; i < EACH; i++) {
        found[i] = statistics[min(i * SUBGROUP + own, STATISTICS - 1u)];
    }
    // Both sums are of what is apart from the first mean, so that they are found at once and nothing is lost.
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

// How many values one of them speaks of.
fn count_of(part: u32) -> f32 { return f32(min(max(part * STATISTICS_ROWS, D) - part * STATISTICS_ROWS, STATISTICS_ROWS)); }
