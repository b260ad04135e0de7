// Subgroups choose the experts, each of some rows, before the choices are sorted.
// needs moe/ranking: rank
const SUBGROUPS = WG / SUBGROUP;

const_assert USED <= SUBGROUP;

fn choose(lane: u32) {
    for (var first = 0u; first < step.rows; first += SUBGROUPS) {
        let t = first + lane / SUBGROUP;
        _ = rank(min(t, step.rows - 1u), 0u, USED, t < step.rows, lane % SUBGROUP);
    }
    storageBarrier();
}
