// A logit after penalties and mask, LEAST where the token is impossible; what is remembered for penalties to come.
// needs lanes: reduce_add2, reduce_max2
// needs mask: allowed
// needs sampling/draw: is_set
@group(0) @binding(3) var<storage, read_write> counts: array<vec2u>;    // [S, V]: how often, and when last

const CHANGES = true;           // whether logits may be adjusted, or cut off

fn adjusted(row: u32, draw: Draw, token: u32, raw: f32) -> f32 {
    let x = max(raw, LEAST);
    if x <= LEAST || (is_set(draw, MASKED) && !allowed(row, token)) {
        return LEAST;
    }
    if !is_set(draw, PENALISED) {
        return x;
    }
    let said = counts[draw.seat * V + token];
    if said.y == 0u {
        return x;
    }
    let count = bitcast<f32>(said.x) * exp2(draw.fading * f32(draw.tokens - said.y));
    return select(x * draw.repetition, x / draw.repetition, x > 0.0) - draw.presence - count * draw.frequency;
}

// Of a token of a row, by its number.
fn logit_of(row: u32, draw: Draw, token: u32) -> f32 { return adjusted(row, draw, token, logits[row * V + token]); }

fn truncates(draw: Draw) -> bool {
    return !is_set(draw, GREEDY | SKIP) && (draw.top_k < V || draw.top_p < 1.0 || draw.min_p > LEAST);
}

// Of what became of logits, and of those that came.
fn reduce_most(v: vec2f, lane: u32) -> vec2f { return reduce_max2(v, lane); }
fn reduce_sums(v: vec2f, lane: u32) -> vec2f { return reduce_add2(v, lane); }
