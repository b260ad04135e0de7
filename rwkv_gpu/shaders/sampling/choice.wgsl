// Chooses the token of a row from the results of its blocks, and records it: chosen[r] = the token, its log probability, and
// the reason if there is none
// needs lanes: reduce_best; logits: remember; sampling/draw: draw_keys, is_set; sampling/part: Best, better, key_of
// needs truncation: best_kept, is_cut
@group(0) @binding(7) var<storage, read_write> chosen: array<vec4u>;    // [R]
@group(0) @binding(8) var<storage, read_write> sampled: array<u32>;        // [S], then the rings [S, RING]

fn choose(row: u32, draw: Draw, whole: Whole, lane: u32) {
    let keys = draw_keys(draw);
    // The best of all blocks' winners; if tokens are truncated, the best of those that remain.
    var best = Best(LEAST, NO_TOKEN, 0.0);
    if is_cut(draw) {
        best = best_kept(row, draw, keys, whole, lane);
    } else {
        for (var n = 0u; n < TURNS; n++) {
            if n * WG + lane < BLOCKS && found[n].token < V {
                let key = key_of(draw, keys, found[n].token, found[n].x, whole.most.x);
                best = better(best, Best(key, found[n].token, found[n].x));
            }
        }
    }
    let token = reduce_best(best.key, best.token, lane);
    // The lane with the winner writes it; if there is none, the first lane does.
    if select(lane == 0u, best.token == token, token < V) {
        finish(row, draw, best, whole);
    }
}

fn finish(row: u32, draw: Draw, best: Best, whole: Whole) {
    if is_set(draw, SKIP) {
        chosen[row] = vec4u(NO_TOKEN, 0u, SKIPPED, 0u);
    } else if whole.most.y >= MOST || whole.most.x <= LEAST || best.token >= V {
        chosen[row] = vec4u(NO_TOKEN, 0u, select(NOTHING_LEFT, BAD_NUMBERS, whole.most.y >= MOST), 0u);
        sampled[draw.slot] = 0u;   // an existing token, so that readers stay within the vocabulary
    } else {
        var raw = best.x;
        if CHANGES {
            raw = logits[row * V + best.token];
        }
        chosen[row] = vec4u(best.token, bitcast<u32>(raw - whole.most.y - log(whole.sum.y)), 0u, 0u);
        sampled[draw.slot] = best.token;
        remember(draw, best.token);
    }
}
