// parts[r, b] = maximum, sum and winner of tokens SPAN b .. SPAN (b + 1) of row r      one workgroup per row and block
// needs choice: choose; lanes: reduce_best; logits: adjusted, reduce_most, reduce_sums, truncates; row: chooses
// needs sampling/draw: draw_keys; sampling/part: Best, better, key_of; sampling/whole: whole_of
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]

const AT_ONCE = min(4u, SPAN / WG);     // logits that a lane loads before it uses the first
const ONCE = WG * AT_ONCE == SPAN;      // true if these are all logits of a lane, so that they stay in registers

const_assert SPAN % (WG * AT_ONCE) == 0u;

// Some logits, original and adjusted. Impossible tokens, and places beyond the last token, have LEAST.
struct Few {
    raw: array<f32, AT_ONCE>,
    x: array<f32, AT_ONCE>,
}

fn run(group: u32, lane: u32) {
    let row = group / BLOCKS;
    let block = group % BLOCKS;
    if row >= step.rows {
        return;
    }
    let draw = draws[row];
    let first = block * SPAN + lane;
    let end = min(V, (block + 1u) * SPAN);

    var few: Few;
    var most = vec2f(LEAST);            // the maxima of adjusted and of unchanged logits
    for (var base = first; base < end; base += WG * AT_ONCE) {
        few = few_at(row, draw, base);
        for (var n = 0u; n < AT_ONCE; n++) {
            most = max(most, select(vec2f(few.x[n], max(few.raw[n], LEAST)), vec2f(MOST), is_bad(few.raw[n])));
        }
    }
    most = reduce_most(most, lane);

    let keys = draw_keys(draw);
    var sums = vec2f();
    var best = Best(LEAST, NO_TOKEN, 0.0);
    for (var base = first; base < end; base += WG * AT_ONCE) {
        if !ONCE {
            few = few_at(row, draw, base);
        }
        for (var n = 0u; n < AT_ONCE; n++) {
            let token = base + n * WG;
            let x = few.x[n];
            if CHANGES && token < end {
                sums.y += exp(max(few.raw[n], LEAST) - most.y);
            }
            if x > LEAST {
                sums.x += exp(x - most.x);
                best = better(best, Best(key_of(draw, keys, token, x, most.x), token, x));
            }
        }
    }
    sums = reduce_sums(sums, lane);
    let place = reduce_best(best.key, best.token, lane);
    // The lane with the winner writes the results; if there is none, the first lane does.
    if select(lane == 0u, best.token == place, place < V) {
        let at = row * BLOCKS + block;
        parts[at].most = most.x;
        parts[at].sum = sums.x;
        if CHANGES {
            parts[at].raw_most = most.y;
            parts[at].raw_sum = sums.y;
            atomicStore(&parts[at].listed, 0u);
        }
        parts[at].token = place;
        parts[at].x = best.x;
    }
    if !truncates(draw) && chooses(row, lane) {
        choose(row, draw, whole_of(row, lane), lane);
    }
}

// The logit of a token; beyond the last token, that of the last, which is marked impossible.
fn few_at(row: u32, draw: Draw, base: u32) -> Few {
    var few: Few;
    for (var n = 0u; n < AT_ONCE; n++) {
        few.raw[n] = logits[row * V + min(base + n * WG, V - 1u)];
    }
    for (var n = 0u; n < AT_ONCE; n++) {
        few.x[n] = LEAST;
        if base + n * WG < V {
            few.x[n] = adjusted(row, draw, base + n * WG, few.raw[n]);
        }
    }
    return few;
}

// Tests the bits for NaN or +inf, because compilers remove comparisons with NaN.
fn is_bad(x: f32) -> bool {
    let bits = bitcast<u32>(x);
    return (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u;
}
