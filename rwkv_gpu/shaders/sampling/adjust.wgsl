// A logit after bias, penalties and mask, LEAST if the token is impossible; and the update of the counts for later penalties.
// needs lanes: reduce_add2, reduce_max2; mask: allowed; sampling/draw: is_set
@group(0) @binding(3) var<storage, read_write> counts: array<vec2u>;    // [S, PAIRS]: the count of each token and its last occurrence; then biases

const WORDS = (V + 31u) / 32u;              // words that hold a bit for each token
const PAIRS = V + WORDS + BIASES / 2u;      // pairs of numbers per slot

const CHANGES = true;           // true if logits may be adjusted or truncated

fn adjusted(row: u32, draw: Draw, token: u32, raw: f32) -> f32 {
    var x = max(raw, LEAST);
    if is_set(draw, BIASED) {
        x = biased(draw, token, x);
    }
    if x <= LEAST || (is_set(draw, MASKED) && !allowed(row, token)) {
        return LEAST;
    }
    if !is_set(draw, PENALISED) {
        return x;
    }
    let said = counts[draw.slot * PAIRS + token];
    if said.y == 0u {
        return x;
    }
    let count = bitcast<f32>(said.x) * exp2(draw.log2_decay * f32(draw.tokens - said.y));
    return select(x * draw.repetition, x / draw.repetition, x > 0.0) - draw.presence - count * draw.frequency;
}

// A mask of 32 tokens shows which have a bias; the number of biases of all tokens before them is stored next to it.
fn biased(draw: Draw, token: u32, x: f32) -> f32 {
    let table = draw.slot * PAIRS + V;
    let word = counts[table + token / 32u];
    let bit = 1u << (token % 32u);
    if (word.x & bit) == 0u {
        return x;
    }
    let place = word.y + countOneBits(word.x & (bit - 1u));
    let pair = counts[table + WORDS + place / 2u];
    return max(x + bitcast<f32>(select(pair.x, pair.y, place % 2u == 1u)), LEAST);
}

// The adjusted logit of a token.
fn logit_of(row: u32, draw: Draw, token: u32) -> f32 { return adjusted(row, draw, token, logits[row * V + token]); }

fn truncates(draw: Draw) -> bool {
    return !is_set(draw, GREEDY | SKIP) && (draw.top_k < V || draw.top_p < 1.0 || draw.min_p > LEAST);
}

// Reductions over adjusted logits (x) and original ones (y).
fn reduce_most(v: vec2f, lane: u32) -> vec2f { return reduce_max2(v, lane); }
fn reduce_sums(v: vec2f, lane: u32) -> vec2f { return reduce_add2(v, lane); }
