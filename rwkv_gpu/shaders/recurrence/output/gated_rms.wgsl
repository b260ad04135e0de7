// y = rms_norm(S r) · weight · then(gate), normed over the head
// needs recurrence/gain: gain_at
// needs recurrence/sums: token_sum_of_squares
// needs recurrence/walk: y4
// needs y: write_y
var<workgroup> token_deviation: array<f32, BLOCK>;  // 1 / that of S r

fn last_of(block: Block, i: u32) -> vec4f {
    if i >= block.tokens * N4 {
        return vec4f();
    }
    return gain_at(block, i);
}

fn conclude(first: vec4f, block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        squares[i] = dot(y4(i), y4(i));
    }
    workgroupBarrier();
    if lane < block.tokens {
        token_deviation[lane] = inverseSqrt(token_sum_of_squares(lane) / f32(N) + EPS);
    }
    workgroupBarrier();
    for (var i = lane; i < block.tokens * N4; i += WG) {
        var last = first;
        if i != lane {
            last = last_of(block, i);
        }
        write_y(block, i, y4(i) * token_deviation[i / N4] * last);
    }
}
