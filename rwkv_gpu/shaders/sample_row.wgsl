// chosen[r] = the token drawn from row r, its log probability, the reason where there is none      one workgroup per row
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [R, V]
@group(0) @binding(2) var<storage, read> draws: array<Draw>;            // [R]
@group(0) @binding(3) var<storage, read_write> counts: array<vec2u>;    // [S, V]: how often, and when last
@group(0) @binding(5) var<storage, read> parts: array<Part>;            // [R, BLOCKS]
@group(0) @binding(6) var<storage, read_write> list: array<vec2u>;      // [R, 1 + 2 LIST]: bounds, then what may be kept
@group(0) @binding(7) var<storage, read_write> chosen: array<vec4u>;    // [R]
@group(0) @binding(8) var<storage, read_write> said: array<u32>;        // [S], then the rings [S, RING]

fn run(group: u32, lane: u32) {
    let row = group;
    if row >= step.rows {
        return;
    }
    let draw = draws[row];
    var raw_most = LEAST;
    var most = LEAST;
    for (var b = lane; b < BLOCKS; b += WG) {
        raw_most = max(raw_most, parts[row * BLOCKS + b].raw_most);
        most = max(most, parts[row * BLOCKS + b].most);
    }
    raw_most = reduce_max(raw_most, lane);
    most = reduce_max(most, lane);
    var raw_sum = 0.0;
    var sum = 0.0;
    for (var b = lane; b < BLOCKS; b += WG) {
        let part = parts[row * BLOCKS + b];
        raw_sum += part.raw_sum * exp(part.raw_most - raw_most);
        sum += select(0.0, part.sum * exp(part.most - most), part.most > LEAST);
    }
    raw_sum = reduce_add(raw_sum, lane);
    sum = reduce_add(sum, lane);

    // Of the winners of all blocks or, where not every token may stay, of those that do.
    let cuts = truncates(draw);
    var size = BLOCKS;
    if cuts {
        truncate(row, draw, most, sum, lane);
        size = kept_size();
    }
    let keys = draw_keys(draw);
    var best = LEAST;
    var place = NO_TOKEN;
    for (var i = lane; i < size; i += WG) {
        var token = parts[row * BLOCKS + min(i, BLOCKS - 1u)].token;
        if cuts {
            let entry = entry_of(row, draw, i);
            token = select(NO_TOKEN, entry.y, is_kept(entry));
        }
        if token < V {
            let x = adjusted(row, draw, token);
            var key = x;
            if !is_set(draw, GREEDY) {
                key = (x - most) * draw.coldness + luck(keys, token);
            }
            if key > best || (key == best && token < place) {
                best = key;
                place = token;
            }
        }
    }
    let top = reduce_max(best, lane);
    place = reduce_min(select(NO_TOKEN, place, best == top), lane);
    if lane == 0u {
        finish(row, draw, place, raw_most, raw_sum, most);
    }
}

fn finish(row: u32, draw: Draw, token: u32, raw_most: f32, raw_sum: f32, most: f32) {
    if is_set(draw, SKIP) {
        chosen[row] = vec4u(NO_TOKEN, 0u, SKIPPED, 0u);
    } else if raw_most >= MOST || most <= LEAST || token >= V {
        chosen[row] = vec4u(NO_TOKEN, 0u, select(NOTHING_LEFT, BAD_NUMBERS, raw_most >= MOST), 0u);
        said[draw.seat] = 0u;   // a token that exists, for what reads it
    } else {
        let logprob = logits[row * V + token] - raw_most - log(raw_sum);
        chosen[row] = vec4u(token, bitcast<u32>(logprob), 0u, 0u);
        said[draw.seat] = token;
        if is_set(draw, PENALISED) {
            accept_token(draw, token);
        }
    }
}

// One more token: counted, and what leaves the window is counted no more.
fn accept_token(draw: Draw, token: u32) {
    let ring = arrayLength(&said) / (RING + 1u) + draw.seat * RING;
    let at = draw.tokens;
    if draw.window > 0u && at >= draw.window {
        let leaves = draw.seat * V + said[ring + (at - draw.window) % RING];
        let rest = bitcast<f32>(counts[leaves].x) - 1.0;
        counts[leaves] = select(vec2u(0u), vec2u(bitcast<u32>(rest), counts[leaves].y), rest > 0.0);
    }
    said[ring + at % RING] = token;
    let place = draw.seat * V + token;
    let old = counts[place];
    let count = bitcast<f32>(old.x) * exp2(draw.fading * f32(at + 1u - old.y)) + 1.0;
    counts[place] = vec2u(bitcast<u32>(count), at + 1u);
}
