// min(s(min(gate, MOST_GATE)), MOST_ACTIVATED) · (up within ±LIMIT + SHIFT), s(a) = a · sigmoid(ALPHA · a)
fn glu(gate: f32, up: f32) -> f32 {
    let a = min(gate, MOST_GATE);
    return min(a / (1.0 + exp(-ALPHA * a)), MOST_ACTIVATED) * (clamp(up, -LIMIT, LIMIT) + SHIFT);
}
