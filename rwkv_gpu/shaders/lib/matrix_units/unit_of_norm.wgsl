// All rows of float16 are multiples of one unit, and not yet normed. The sums of squares of each S columns of every row
// follow them. Their totals are needed only after the products, and stay in `y_tile` until then.
const QUADS = TB / 4u;                  // groups of four rows
const AT_A_TIME = 4u;                   // loads of squares that a lane issues at a time

const_assert WG % QUADS == 0u && SUBGROUP % QUADS == 0u;

fn find_scales(lane: u32) {
    let count = matrix.k / S * QUADS;
    let first = matrix.x / 2u + matrix.k / 8u * X_ROWS;
    var sum = vec4f();
    for (var base = lane; base < count; base += AT_A_TIME * WG) {
        let a = squares_at(first, base, count);
        let b = squares_at(first, base + WG, count);
        let c = squares_at(first, base + 2u * WG, count);
        let d = squares_at(first, base + 3u * WG, count);
        sum += (a + b) + (c + d);
    }
    for (var d = QUADS; d < SUBGROUP; d *= 2u) {
        sum += subgroupShuffleXor(sum, d);
    }
    if lane % SUBGROUP < QUADS {
        for (var r = 0u; r < 4u; r++) {
            y_tile[lane / SUBGROUP * TB + lane % SUBGROUP * 4u + r] = sum[r];
        }
    }
}

fn squares_at(first: u32, n: u32, count: u32) -> vec4f {
    let at = min(n, count - 1u);
    return select(vec4f(), bitcast<vec4f>(x[first + (at / QUADS * X_ROWS + t0) / 4u + at % QUADS]), n < count);
}

// Must be called between barriers.
fn settle_scales(lane: u32) {
    for (var r = lane; r < TB; r += WG) {
        var sum = 0.0;
        for (var i = 0u; i < WG / SUBGROUP; i++) {
            sum += y_tile[i * TB + r];
        }
        x_scales[r] = X_UNIT / W_SCALE * inverseSqrt(sum / f32(matrix.k) + X_EPS);
    }
    workgroupBarrier();
}
