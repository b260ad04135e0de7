// The factors by which a chunk reads the S before it, and the values that it adds to S       one workgroup per chunk and head
//
// S_t = S_(t-1) diag(w_t) + v_t k_tᵀ + (S_(t-1) a_t) b_tᵀ, y_t = S_t r_t. With u_t = S_(t-1) a_t, the rows of a chunk solve
// U = L U + L' V + A S₀ᵀ, where L holds a_t · b_i with the decay from i to t. So U = W S₀ᵀ + U₀ and y = R S₀ᵀ + Y₀.
// Decays are only multiplied, never divided by, which avoids overflow and underflow. The system is solved by forward
// substitution, as powers of L would cancel each other. With one key (k = b), u and v are added with the same key, so U
// contains both. Without removal, U is V.
// needs inputs: inputs_at, prepare_tokens, value_at; recurrence/chunk: Block, token_place
// needs recurrence/chunk_stack: decay_place, first_slot, key_part, value_part
@group(0) @binding(5) var<storage, read_write> chunks: array<f32>;      // the stack
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, N], Y₀

const_assert WG >= 2u * N;
const_assert BLOCK % 4u == 0u;
const_assert WG % BLOCK == 0u;
const_assert N4 % PIECE4 == 0u;
const FOURS = BLOCK / 4u;
const TILES = FOURS * BLOCK;        // a tile is four tokens t by one token i
const SHARES = min(WG / TILES, PIECE4);     // lanes of a tile, which divide its channels
const APART = PIECE4 + 1u;         // distance of tokens of a piece in vec4s, so that they lie in different banks
const PIECE = BLOCK * APART;
// Matrices: a_t · k_i, a_t · b_i, r_t · k_i and r_t · b_i.
const AK = 0u;
const AB = 1u;
const RK = 2u;
const RB = 3u;

var<workgroup> piece_r: array<vec4f, PIECE>;
var<workgroup> piece_w: array<vec4f, PIECE>;
var<workgroup> piece_k: array<vec4f, PIECE>;
var<workgroup> piece_a: array<vec4f, PIECE>;
var<workgroup> piece_b: array<vec4f, PIECE>;
var<workgroup> matrices: array<vec4f, 4u * TILES>;  // [matrix][t / 4][i], with four t in a vec4

// Four channels of a token: S diag(w) + v kᵀ + (S a) bᵀ, read by r.
struct Inputs {
    r: vec4f,
    w: vec4f,
    k: vec4f,
    a: vec4f,
    b: vec4f,
}

fn run(group: u32, lane: u32) {
    let slot = group / H;
    var segment = 0u;
    while segment + 1u < step.segments && first_slot(segment + 1u) <= slot {
        segment++;
    }
    if step.segments == 0u {
        return;
    }
    let done = (slot - first_slot(segment)) * BLOCK;
    let count = segments[segment].count;
    if done >= count {
        return;
    }
    let alone = segments[segment].kept > 0u;
    let block = Block(segments[segment].first + done, min(BLOCK, count - done), group % H, alone);
    prepare_tokens(block, lane);
    make_matrices(block, lane);
    if lane < N {
        solve_keys(block, decay_place(segment, done, block.head), lane);
    } else if lane < 2u * N {
        solve_values(block, lane - N);
    }
}

fn make_matrices(block: Block, lane: u32) {
    let share = lane / TILES;
    let four = lane / BLOCK % FOURS;
    let i = lane % BLOCK;
    var sums = mat4x4f();           // a column for each of the four tokens
    for (var piece = 0u; piece < N4; piece += PIECE4) {
        workgroupBarrier();         // all lanes have read the previous piece
        for (var e = lane; e < BLOCK * PIECE4; e += WG) {
            let at = e / PIECE4 * APART + e % PIECE4;
            let x = input_of(block, e / PIECE4, piece + e % PIECE4);
            piece_r[at] = x.r;
            piece_w[at] = x.w;
            piece_k[at] = x.k;
            piece_a[at] = x.a;
            piece_b[at] = x.b;
        }
        workgroupBarrier();
        if share < SHARES && i < 4u * four + 4u {
            for (var q = share; q < PIECE4; q += SHARES) {
                sums += tile_of(four, i, q, block.alone);
            }
        }
    }
    let columns = transpose(sums);
    for (var turn = 0u; turn < SHARES; turn++) {
        if share == turn {
            for (var m = 0u; m < 4u; m++) {
                let at = m * TILES + four * BLOCK + i;
                var before = vec4f();
                if turn > 0u {
                    before = matrices[at];
                }
                matrices[at] = before + columns[m];
            }
        }
        workgroupBarrier();
    }
}

// k and b of a token, combined with each later token in turn.
struct Keys {
    k: vec4f,
    b: vec4f,
}

// The contribution of four channels to four tokens by token i.
fn tile_of(four: u32, i: u32, q: u32, alone: bool) -> mat4x4f {
    var keys = Keys(piece_k[i * APART + q], piece_b[i * APART + q]);
    for (var j = i + 1u; j < 4u * four; j++) {
        let w = piece_w[j * APART + q];
        keys.k *= w;
        keys.b *= w;
    }
    return mat4x4f(
        products(&keys, 4u * four, i, q, alone),
        products(&keys, 4u * four + 1u, i, q, alone),
        products(&keys, 4u * four + 2u, i, q, alone),
        products(&keys, 4u * four + 3u, i, q, alone),
    );
}

// Adds a_t and r_t times k_i and b_i, and advances to the next t.
fn products(keys: ptr<function, Keys>, t: u32, i: u32, q: u32, alone: bool) -> vec4f {
    let at = t * APART + q;
    if alone && t != i {
        return vec4f();
    }
    let before = *keys;
    if t > i {
        (*keys).k *= piece_w[at];
        (*keys).b *= piece_w[at];
    }
    var found = vec4f();
    if t > i && REMOVES != 0u {
        found.y = dot(piece_a[at], before.b);
        if ONE_KEY == 0u {
            found.x = dot(piece_a[at], before.k);
        }
    }
    if READS_OLD != 0u {
        found.w = select(0.0, dot(piece_r[at], before.b), t > i);
    } else if t >= i {
        found.w = dot(piece_r[at], (*keys).b);
        if ONE_KEY == 0u {
            found.z = dot(piece_r[at], (*keys).k);
        }
    }
    return found;
}

// Computes, for one channel of the key, W, R, and k and b with the decay to the end of the chunk.
fn solve_keys(block: Block, decays: u32, channel: u32) {
    let place = 4u * token_place(block, 0u, 0u) + channel;
    var x: array<vec4f, FOURS>;
    var out: array<vec4f, FOURS>;
    var w: array<vec4f, FOURS>;
    var k: array<vec4f, FOURS>;
    var b: array<vec4f, FOURS>;
    var decay = 1.0;
    for (var four = 0u; four < FOURS; four++) {
        let here = fours_of(block, 4u * four, channel);
        let second = decay * here.w.x;
        let third = second * here.w.y;
        let fourth = third * here.w.z;
        var before = vec4f(decay, second, third, fourth);
        decay = fourth * here.w.w;
        var after = vec4f(second, third, fourth, decay);
        if block.alone {
            before = vec4f(1.0);
            after = here.w;
        }
        x[four] = here.a * before;
        out[four] = here.r * select(after, before, READS_OLD != 0u);
        w[four] = here.w;
        k[four] = here.k;
        b[four] = here.b;
    }
    for (var t = 0u; t < select(1u, block.tokens, block.alone); t++) {
        chunks[4u * (decays + t * H * N4) + channel] = select(decay, w[t / 4u][t % 4u], block.alone);
    }
    if REMOVES != 0u {
        solve(&x, &out);                // otherwise, the S before the chunk does not reach y through U
    }
    var rest = 1.0;
    for (var n = 0u; n < FOURS; n++) {
        let four = FOURS - 1u - n;
        let third = rest * w[four].w;
        let second = third * w[four].z;
        let first = second * w[four].y;
        let after = select(vec4f(first, second, third, rest), vec4f(1.0), vec4<bool>(block.alone));
        rest = first * w[four].x;
        store(4u * key_part(PART_R) + place, 4u * D4, block, four, out[four]);
        store(4u * key_part(PART_B) + place, 4u * D4, block, four, b[four] * after);
        if REMOVES != 0u {
            store(4u * key_part(PART_W) + place, 4u * D4, block, four, x[four]);
        }
        if ONE_KEY == 0u {
            store(4u * key_part(PART_K) + place, 4u * D4, block, four, k[four] * after);
        }
    }
}

// One channel of four tokens; beyond the last token, values that leave S unchanged.
fn fours_of(block: Block, token: u32, channel: u32) -> Inputs {
    let one = input_of(block, token, channel / 4u);
    let two = input_of(block, token + 1u, channel / 4u);
    let three = input_of(block, token + 2u, channel / 4u);
    let four = input_of(block, token + 3u, channel / 4u);
    let c = channel % 4u;
    return Inputs(
        vec4f(one.r[c], two.r[c], three.r[c], four.r[c]), vec4f(one.w[c], two.w[c], three.w[c], four.w[c]),
        vec4f(one.k[c], two.k[c], three.k[c], four.k[c]), vec4f(one.a[c], two.a[c], three.a[c], four.a[c]),
        vec4f(one.b[c], two.b[c], three.b[c], four.b[c]),
    );
}

// Loads even if the token does not exist, so that loads need not wait for each other.
fn input_of(block: Block, token: u32, n: u32) -> Inputs {
    let x = inputs_at(block, min(token, block.tokens - 1u), n);
    let none = vec4<bool>(token >= block.tokens);
    return Inputs(
        select(x.r, vec4f(), none), select(x.w, vec4f(1.0), none), select(x.k, vec4f(), none),
        select(x.a, vec4f(), none), select(x.b, vec4f(), none),
    );
}

// Computes U₀ and Y₀ of a channel of the value.
fn solve_values(block: Block, channel: u32) {
    let place = 4u * token_place(block, 0u, 0u) + channel;
    var v: array<vec4f, FOURS>;
    var x: array<vec4f, FOURS>;
    var out: array<vec4f, FOURS>;
    for (var four = 0u; four < FOURS; four++) {
        let t = 4u * four;
        v[four] = vec4f(
            one_value(block, t, channel), one_value(block, t + 1u, channel),
            one_value(block, t + 2u, channel), one_value(block, t + 3u, channel),
        );
        x[four] = v[four];
        out[four] = vec4f();
        if ONE_KEY == 0u {
            x[four] = vec4f();
            for (var before = 0u; before <= four; before++) {
                x[four] += times(AK, four, before, v[before]);
                out[four] += times(RK, four, before, v[before]);
            }
        }
    }
    solve(&x, &out);
    for (var four = 0u; four < FOURS; four++) {
        store(4u * value_part(PART_U) + place, 4u * D4, block, four, x[four]);
        if ONE_KEY == 0u {
            store(4u * value_part(PART_V) + place, 4u * D4, block, four, v[four]);
        }
        for (var j = 0u; j < 4u; j++) {
            if 4u * four + j < block.tokens {
                y[place + (4u * four + j) * 4u * D4] = out[four][j];
            }
        }
    }
}

// A channel of four tokens.
fn store(place: u32, width: u32, block: Block, four: u32, values: vec4f) {
    for (var j = 0u; j < 4u; j++) {
        if 4u * four + j < block.tokens {
            chunks[place + (4u * four + j) * width] = values[j];
        }
    }
}

fn one_value(block: Block, token: u32, channel: u32) -> f32 {
    return select(value_at(block, min(token, block.tokens - 1u), channel / 4u)[channel % 4u], 0.0, token >= block.tokens);
}

// x = (1 - L)⁻¹ x; also adds what r reads of the result to `out`.
fn solve(x: ptr<function, array<vec4f, FOURS>>, out: ptr<function, array<vec4f, FOURS>>) {
    for (var four = 0u; four < FOURS; four++) {
        var here = (*x)[four];
        if REMOVES != 0u {
            for (var before = 0u; before < four; before++) {
                here += times(AB, four, before, (*x)[before]);
            }
            let at = AB * TILES + four * BLOCK + 4u * four;
            here += matrices[at] * here.x;
            here += matrices[at + 1u] * here.y;
            here += matrices[at + 2u] * here.z;
            (*x)[four] = here;
        }
        var seen = (*out)[four];
        for (var before = 0u; before <= four; before++) {
            seen += times(RB, four, before, (*x)[before]);
        }
        (*out)[four] = seen;
    }
}

// The product of a 4 x 4 block of a matrix with the values of four tokens.
fn times(matrix: u32, four: u32, before: u32, x: vec4f) -> vec4f {
    let at = matrix * TILES + four * BLOCK + 4u * before;
    return mat4x4f(matrices[at], matrices[at + 1u], matrices[at + 2u], matrices[at + 3u]) * x;
}
