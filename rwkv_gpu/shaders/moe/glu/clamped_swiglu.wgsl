// a · sigmoid(ALPHA · a) · (b + 1), a = min(gate, LIMIT), b = up between -LIMIT and LIMIT
fn glu(gate: f32, up: f32) -> f32 {
    let a = min(gate, LIMIT);
    return a / (1.0 + exp(-ALPHA * a)) * (clamp(up, -LIMIT, LIMIT) + 1.0);
}
