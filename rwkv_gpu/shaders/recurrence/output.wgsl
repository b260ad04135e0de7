// Norms and gates of y.

//# gated: y = (S r) · gate
// needs inputs: gate_of; recurrence/walk: item_place, y4; y: write_y
fn last_of(block: Block, i: u32) -> vec4f {
    if i >= block.tokens * N4 {
        return vec4f();
    }
    return gate_of(item_place(block, i));
}

fn conclude(first: vec4f, block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        var last = first;
        if i != lane {
            last = last_of(block, i);
        }
        write_y(block, i, y4(i) * last);
    }
}

//# gated_rms: y = rms_norm(S r) · weight · then(gate), normed over the head
// needs recurrence/gain: gain_at; recurrence/sums: token_sum_of_squares; recurrence/walk: y4; y: write_y
var<workgroup> token_deviation: array<f32, BLOCK>;  // 1 / the deviation of S r

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

//# group_norm: y = with_bonus(norm(S r) · weight + bias) · gate, normed over the head if there is a norm
// needs gate: gate_of; kernel: with_bonus; recurrence/walk: item_place, y4; y: write_y
// needs recurrence/sums: token_sum, token_sum_of_squares
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // [D / 4] each; from GAIN on, weight and bias of the norm

var<workgroup> token_mean: array<f32, BLOCK>;       // the mean of S r
var<workgroup> token_deviation: array<f32, BLOCK>;  // 1 / the deviation of S r

// The factors that a vec4 of S r is multiplied by at the end.
struct Last {
    weight: vec4f,
    bias: vec4f,
    gate: vec4f,
}

fn last_of(block: Block, i: u32) -> Last {
    if i >= block.tokens * N4 {
        return Last();
    }
    let d = block.head * N4 + i % N4;
    if NORMED == 0u {
        return Last(vec4f(), vec4f(), gate_of(item_place(block, i)));
    }
    return Last(vectors[GAIN * D4 + d], vectors[(GAIN + 1u) * D4 + d], gate_of(item_place(block, i)));
}

// Norms, adds the bonus, gates and writes a block of tokens. `first` holds the parameters of the lane's first vec4.
fn conclude(first: Last, block: Block, lane: u32) {
    if NORMED == 0u {
        for (var i = lane; i < block.tokens * N4; i += WG) {
            write_y(block, i, with_bonus(i / N4, i, y4(i)) * gate_of(item_place(block, i)));
        }
        return;
    }
    for (var i = lane; i < block.tokens * N4; i += WG) {
        sums[i] = dot(y4(i), vec4f(1.0));
    }
    workgroupBarrier();
    if lane < block.tokens {
        token_mean[lane] = token_sum(lane) / f32(N);
    }
    workgroupBarrier();
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let centred = y4(i) - token_mean[i / N4];
        squares[i] = dot(centred, centred);
    }
    workgroupBarrier();
    if lane < block.tokens {
        token_deviation[lane] = inverseSqrt(token_sum_of_squares(lane) / f32(N) + EPS);
    }
    workgroupBarrier();
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let token = i / N4;
        var last = first;
        if i != lane {
            last = last_of(block, i);
        }
        let normed = (y4(i) - token_mean[token]) * token_deviation[token] * last.weight + last.bias;
        write_y(block, i, with_bonus(token, i, normed) * last.gate);
    }
}

//# plain: y = S r
// needs recurrence/walk: y4; y: write_y
fn last_of(_block: Block, _i: u32) -> vec4f { return vec4f(); }

fn conclude(_first: vec4f, block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        write_y(block, i, y4(i));
    }
}
