// parts[r, b] = maximum, sum and winner of tokens SPAN b .. SPAN (b + 1) of row r      one workgroup per row and block
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]
@group(0) @binding(3) var<storage, read> counts: array<vec2u>;          // [S, V]: how often, and when last
@group(0) @binding(5) var<storage, read_write> parts: array<Part>;      // [R, BLOCKS]

fn run(group: u32, lane: u32) {
    let row = group / BLOCKS;
    let block = group % BLOCKS;
    if row >= step.rows {
        return;
    }
    let draw = draws[row];
    if is_set(draw, SKIP) {
        return;
    }
    let first = block * SPAN + lane;
    let end = min(V, (block + 1u) * SPAN);
    let changes = is_set(draw, PENALISED | MASKED);

    var raw_most = LEAST;
    var most = LEAST;
    for (var token = first; token < end; token += WG) {
        let x = logits[row * V + token];
        raw_most = max(raw_most, select(max(x, LEAST), MOST, is_bad(x)));
        most = max(most, adjusted(row, draw, token));
    }
    raw_most = reduce_max(raw_most, lane);
    most = reduce_max(most, lane);

    let keys = draw_keys(draw);
    var raw_sum = 0.0;
    var sum = 0.0;
    var best = LEAST;
    var place = NO_TOKEN;
    for (var token = first; token < end; token += WG) {
        let x = adjusted(row, draw, token);
        if changes {
            raw_sum += exp(max(logits[row * V + token], LEAST) - raw_most);
        }
        if x > LEAST {
            sum += exp(x - most);
            var key = x;
            if !is_set(draw, GREEDY) {
                key = (x - most) * draw.coldness + luck(keys, token);
            }
            if key > best {
                best = key;
                place = token;
            }
        }
    }
    sum = reduce_add(sum, lane);
    if changes {
        raw_sum = reduce_add(raw_sum, lane);
    } else {
        raw_sum = sum;
    }
    let top = reduce_max(best, lane);
    place = reduce_min(select(NO_TOKEN, place, best == top), lane);
    if lane == 0u {
        parts[group] = Part(most, sum, raw_most, raw_sum, place, 0u, 0u, 0u);
    }
}

// NaN or +inf, by the bits: comparisons with NaN are folded away.
fn is_bad(x: f32) -> bool {
    let bits = bitcast<u32>(x);
    return (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u;
}
