// One more token: counted, and what leaves the window is counted no more.
// needs sampling/draw: is_set
fn remember(draw: Draw, token: u32) {
    if !is_set(draw, PENALISED) {
        return;
    }
    let ring = arrayLength(&sampled) / (RING + 1u) + draw.seat * RING;
    let at = draw.tokens;
    if draw.window > 0u && at >= draw.window {
        let leaves = draw.seat * PAIRS + sampled[ring + (at - draw.window) % RING];
        let rest = bitcast<f32>(counts[leaves].x) - 1.0;
        counts[leaves] = select(vec2u(0u), vec2u(bitcast<u32>(rest), counts[leaves].y), rest > 0.0);
    }
    sampled[ring + at % RING] = token;
    let place = draw.seat * PAIRS + token;
    let old = counts[place];
    let count = bitcast<f32>(old.x) * exp2(draw.fading * f32(at + 1u - old.y)) + 1.0;
    counts[place] = vec2u(bitcast<u32>(count), at + 1u);
}
