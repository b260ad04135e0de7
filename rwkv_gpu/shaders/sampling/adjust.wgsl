// A logit after penalties and mask: LEAST where the token is impossible.
const LEAST = -3.4e38;
const MOST = 3.4e38;

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
