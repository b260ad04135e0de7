// Chooses the token of a row from what blocks have found, and remembers it: chosen[r] = the token, its log probability, the
// reason where there is none
@group(0) @binding(7) var<storage, read_write> chosen: array<vec4u>;    // [R]
@group(0) @binding(8) var<storage, read_write> said: array<u32>;        // [S], then the rings [S, RING]

const TURNS = (BLOCKS + WG - 1u) / WG;  // blocks for a lane

// What a lane has read of a block.
struct Found {
    most: vec2f,            // of the adjusted logits, and of those that came
    sum: vec2f,
    token: u32,
    value: f32,
}

fn choose(row: u32, draw: Draw, lane: u32) {
    var found: array<Found, TURNS>;
    var most = vec2f(LEAST);
    for (var n = 0u; n < TURNS; n++) {
        found[n] = found_of(row * BLOCKS + min(n * WG + lane, BLOCKS - 1u));
        most = max(most, found[n].most);
    }
    most = reduce_max2(most, lane);
    let keys = draw_keys(draw);
    var sums = vec2f();
    var best = Best(LEAST, NO_TOKEN);
    for (var n = 0u; n < TURNS; n++) {
        let each = found[n].sum * exp(found[n].most - most);
        let counts_too = vec2<bool>(found[n].most.x > LEAST, true);
        sums += select(vec2f(), each, counts_too & vec2<bool>(n * WG + lane < BLOCKS));
        if found[n].token < V {
            best = better(best, Best(key_of(draw, keys, found[n].token, found[n].value, most.x), found[n].token));
        }
    }
    sums = reduce_add2(sums, lane);
    // Of the winners of all blocks or, where not every token may stay, of those that do.
    if is_cut(draw) {
        best = best_kept(row, draw, keys, most.x, sums.x, lane);
    }
    let token = reduce_best(best.key, best.token, lane);
    if lane == 0u {
        finish(row, draw, token, logits[row * V + min(token, V - 1u)], most, sums.y);
    }
}

fn found_of(at: u32) -> Found {
    return Found(
        vec2f(parts[at].most, parts[at].raw_most),
        vec2f(parts[at].sum, parts[at].raw_sum),
        parts[at].token,
        parts[at].value,
    );
}

fn finish(row: u32, draw: Draw, token: u32, raw: f32, most: vec2f, raw_sum: f32) {
    if is_set(draw, SKIP) {
        chosen[row] = vec4u(NO_TOKEN, 0u, SKIPPED, 0u);
    } else if most.y >= MOST || most.x <= LEAST || token >= V {
        chosen[row] = vec4u(NO_TOKEN, 0u, select(NOTHING_LEFT, BAD_NUMBERS, most.y >= MOST), 0u);
        said[draw.seat] = 0u;   // a token that exists, for what reads it
    } else {
        let logprob = raw - most.y - log(raw_sum);
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
