// Experts in groups, of which the best may be chosen.

//# best
// Experts form GROUPS groups. Only experts of the GROUPS_USED best groups can be chosen: a group's score is the sum of
// its two best experts. Of groups with equal scores, the first counts as better.
const GROUP = E / GROUPS;

var<workgroup> group_scores: array<f32, GROUPS>;

fn keep_groups(lane: u32) {
    for (var g = lane; g < GROUPS; g += WG) {
        var first = -3.4e38;
        var second = -3.4e38;
        for (var e = g * GROUP; e < (g + 1u) * GROUP; e++) {
            let value = orders[e / 4u][e % 4u];
            second = max(second, min(first, value));
            first = max(first, value);
        }
        group_scores[g] = select(first + second, first, GROUP == 1u);
    }
    workgroupBarrier();
    for (var f = lane; f < FOURS; f += WG) {
        for (var j = 0u; j < 4u; j++) {
            if 4u * f + j < E && better_groups((4u * f + j) / GROUP) >= GROUPS_USED {
                orders[f][j] = -3.4e38;
            }
        }
    }
    workgroupBarrier();
}

fn better_groups(mine: u32) -> u32 {
    var count = 0u;
    for (var g = 0u; g < GROUPS; g++) {
        let better = group_scores[g] > group_scores[mine] || (group_scores[g] == group_scores[mine] && g < mine);
        count += select(0u, 1u, better);
    }
    return count;
}

//# one: All experts are in one group.
fn keep_groups(_lane: u32) {}
