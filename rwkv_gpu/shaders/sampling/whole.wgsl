// Combines the results of all blocks of a row.
// needs logits: reduce_most, reduce_sums
const TURNS = (BLOCKS + WG - 1u) / WG;  // blocks per lane

struct Whole {
    most: vec2f,            // the maxima of adjusted and of unchanged logits
    sum: vec2f,             // the sums of exp(x - most)
}

var<private> found: array<Found, TURNS>;

// The results of a block that a lane has read.
struct Found {
    whole: Whole,
    token: u32,
    x: f32,
}

fn whole_of(row: u32, lane: u32) -> Whole {
    var most = vec2f(LEAST);
    for (var n = 0u; n < TURNS; n++) {
        found[n] = found_of(row * BLOCKS + min(n * WG + lane, BLOCKS - 1u));
        most = max(most, found[n].whole.most);
    }
    most = reduce_most(most, lane);
    var sum = vec2f();
    for (var n = 0u; n < TURNS; n++) {
        let each = found[n].whole.sum * exp(found[n].whole.most - most);
        sum += select(vec2f(), each, vec2<bool>(n * WG + lane < BLOCKS) & (found[n].whole.most > vec2f(LEAST)));
    }
    return Whole(most, reduce_sums(sum, lane));
}

fn found_of(at: u32) -> Found {
    var whole = Whole(vec2f(parts[at].most), vec2f(parts[at].sum));
    if CHANGES {
        whole.most.y = parts[at].raw_most;
        whole.sum.y = parts[at].raw_sum;
    }
    return Found(whole, parts[at].token, parts[at].x);
}
