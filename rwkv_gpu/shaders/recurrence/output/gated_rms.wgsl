// y = rms_norm(S r) · weight · then(gate), normed over the head
// needs lib/activation: activation
// needs recurrence/sums: token_sum_of_squares
// needs recurrence/walk: item_place, y4
// needs y: write_y
@group(0) @binding(8) var<storage, read> gate: array<vec4f>;            // [T, H, N / 4]

var<workgroup> token_deviation: array<f32, BLOCK>;  // 1 / that of S r

fn last_of(block: Block, i: u32) -> vec4f {
    if i >= block.tokens * N4 {
        return vec4f();
    }
    let given = gate[item_place(block, i)];
    let at = GAIN_AT + 4u * (i % N4);
    return vec4f(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]) * vec4f(
        activation(THEN, given.x), activation(THEN, given.y), activation(THEN, given.z), activation(THEN, given.w)
    );
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
