// Each row of float16 has a power of two, which lies behind the rows.
fn find_scales(lane: u32) {
    let exponents = matrix.x + (matrix.k + 63u) / 64u * 16u * X_ROWS;
    for (var r = lane; r < TB; r += WG) {
        let t = min(t0 + r, step.rows - 1u);
        let word = x[(exponents + t) / 2u][t % 2u * 2u];
        x_scales[r] = ldexp(1.0, i32(unpack2x16float(word).x) - i32(W_EXPONENT));
    }
}

fn settle_scales(_lane: u32) {}
