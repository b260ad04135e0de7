// xIELU: a parabola above 0, and below what an exponential leaves of a line.
fn unary(x: f32) -> f32 {
    let below = NEGATIVE * (exp(min(x, LEAST)) - 1.0 - x);
    return select(below, POSITIVE * x * x, x > 0.0) + BETA * x;
}
