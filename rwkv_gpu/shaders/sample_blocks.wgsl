// parts[r, b] = maximum, sum and winner of tokens SPAN b .. SPAN (b + 1) of row r      one workgroup per row and block
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]
@group(0) @binding(3) var<storage, read_write> counts: array<vec2u>;    // [S, V]: how often, and when last

const AT_ONCE = min(4u, SPAN / WG);     // logits that a lane asks for before it looks at the first

const_assert SPAN % (WG * AT_ONCE) == 0u;

fn run(group: u32, lane: u32) {
    let row = group / BLOCKS;
    let block = group % BLOCKS;
    if row >= step.rows {
        return;
    }
    let draw = draws[row];
    if !is_set(draw, SKIP) {
        sum_up(row, block, draw, lane);
    }
    if !truncates(draw) {
        join(row, draw, lane);
    }
}

fn sum_up(row: u32, block: u32, draw: Draw, lane: u32) {
    let changes = is_set(draw, PENALISED | MASKED);
    let first = block * SPAN + lane;
    let end = min(V, (block + 1u) * SPAN);

    var most = vec2f(LEAST);            // of the adjusted logits, and of those that came
    for (var base = first; base < end; base += WG * AT_ONCE) {
        var x = several(row, base);
        for (var n = 0u; n < AT_ONCE; n++) {
            let token = base + n * WG;
            if token < end {
                most.y = max(most.y, select(max(x[n], LEAST), MOST, is_bad(x[n])));
                most.x = max(most.x, adjusted(row, draw, token, x[n]));
            }
        }
    }
    most = reduce_max2(most, lane);

    let keys = draw_keys(draw);
    var sums = vec2f();
    var best = Best(LEAST, NO_TOKEN);
    for (var base = first; base < end; base += WG * AT_ONCE) {
        var raw = several(row, base);
        for (var n = 0u; n < AT_ONCE; n++) {
            let token = base + n * WG;
            if token < end {
                let x = adjusted(row, draw, token, raw[n]);
                if changes {
                    sums.y += exp(max(raw[n], LEAST) - most.y);
                }
                if x > LEAST {
                    sums.x += exp(x - most.x);
                    best = better(best, Best(key_of(draw, keys, token, x, most.x), token));
                }
            }
        }
    }
    sums = reduce_add2(select(sums.xx, sums, changes), lane);
    let place = reduce_best(best.key, best.token, lane);
    if lane == 0u {
        let at = row * BLOCKS + block;
        parts[at].most = most.x;
        parts[at].raw_most = most.y;
        parts[at].sum = sums.x;
        parts[at].raw_sum = sums.y;
        parts[at].token = place;
        parts[at].value = logit_of(row, draw, min(place, V - 1u));
        atomicStore(&parts[at].listed, 0u);
    }
}

// Beyond the last that of the last.
fn several(row: u32, base: u32) -> array<f32, AT_ONCE> {
    var x: array<f32, AT_ONCE>;
    for (var n = 0u; n < AT_ONCE; n++) {
        x[n] = logits[row * V + min(base + n * WG, V - 1u)];
    }
    return x;
}

// NaN or +inf, by the bits: comparisons with NaN are folded away.
fn is_bad(x: f32) -> bool {
    let bits = bitcast<u32>(x);
    return (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u;
}
