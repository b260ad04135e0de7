fn then(y: f32) -> f32 {
    let positive = max(y, 0.0);
    return positive * positive;
}
