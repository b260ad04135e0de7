// What a chunk needs of S before it, and what it adds to it      one workgroup per chunk and head
//
// S_t = S_(t-1) diag(w_t) + v_t k_tᵀ + (S_(t-1) a_t) b_tᵀ, y_t = S_t r_t. With u_t = S_(t-1) a_t, all of a chunk are the
// solution of U = L U + L' V + A S₀ᵀ: L holds a_t · b_i, faded between i and t. So U = W S₀ᵀ + U₀, y = R S₀ᵀ + Y₀. Decays are
// only multiplied, never divided by, so that none over- or underflows that should not. L is solved forward, as powers
// of it cancel. With one key (k = b) u and v are added by the same, so that U has both. Without removal U is V.
// needs inputs: inputs_at, prepare_tokens, value_at
// needs recurrence/chunk: Block, key_place, value_place
// needs recurrence/chunk_stack: decay_part, first_slot, key_part, value_part
@group(0) @binding(5) var<storage, read_write> chunks: array<f32>;      // the stack
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, P], Y₀

const_assert WG >= N + P;
const_assert BLOCK % 4u == 0u;
const_assert WG % BLOCK == 0u;
const_assert N4 % PIECE4 == 0u;
const FOURS = BLOCK / 4u;
const TILES = FOURS * BLOCK;        // four tokens t by one token i
const SHARES = min(WG / TILES, PIECE4);     // lanes of a tile, by channels
const APART = PIECE4 + 1u;         // of tokens of a piece, so that they lie in different banks
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
var<workgroup> matrices: array<vec4f, 4u * TILES>;  // [matrix][fours of t][i], t within the four

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
    let block = Block(segments[segment].first + done, min(BLOCK, count - done), group % H);
    prepare_tokens(block, lane);
    make_matrices(block, lane);
    if lane < N {
        solve_keys(block, slot, lane);
    } else if lane < N + P {
        solve_values(block, lane - N);
    }
}

fn make_matrices(block: Block, lane: u32) {
    let share = lane / TILES;
    let four = lane / BLOCK % FOURS;
    let i = lane % BLOCK;
    var sums = mat4x4f();           // by token of the four
    for (var piece = 0u; piece < N4; piece += PIECE4) {
        workgroupBarrier();         // the piece before has been read by all
        for (var e = lane; e < BLOCK * PIECE4; e += WG) {
            let token = e / PIECE4;
            let at = token * APART + e % PIECE4;
            var x = Inputs(vec4f(), vec4f(1.0), vec4f(), vec4f(), vec4f());
            if token < block.tokens {
                x = inputs_at(block, token, piece + e % PIECE4);
            }
            piece_r[at] = x.r;
            piece_w[at] = x.w;
            piece_k[at] = x.k;
            piece_a[at] = x.a;
            piece_b[at] = x.b;
        }
        workgroupBarrier();
        if share < SHARES && i < 4u * four + 4u {
            for (var q = share; q < PIECE4; q += SHARES) {
                sums += tile_of(four, i, q);
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

// k and b of a token on their way through those after it.
struct Keys {
    k: vec4f,
    b: vec4f,
}

// Four channels' part of four tokens by token i.
fn tile_of(four: u32, i: u32, q: u32) -> mat4x4f {
    var keys = Keys(piece_k[i * APART + q], piece_b[i * APART + q]);
    for (var j = i + 1u; j < 4u * four; j++) {
        let w = piece_w[j * APART + q];
        keys.k *= w;
        keys.b *= w;
    }
    return mat4x4f(
        products(&keys, 4u * four, i, q),
        products(&keys, 4u * four + 1u, i, q),
        products(&keys, 4u * four + 2u, i, q),
        products(&keys, 4u * four + 3u, i, q),
    );
}

// a_t and r_t by k_i and b_i; goes on to the next t.
fn products(keys: ptr<function, Keys>, t: u32, i: u32, q: u32) -> vec4f {
    let at = t * APART + q;
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

// W, R, and what fades to the end of the chunk, of a channel of the key.
fn solve_keys(block: Block, slot: u32, channel: u32) {
    let place = 4u * key_place(block, 0u, 0u) + channel;
    var x: array<vec4f, FOURS>;
    var out: array<vec4f, FOURS>;
    var decay = 1.0;
    for (var four = 0u; four < FOURS; four++) {
        let e0 = faded(&decay, block, 4u * four, channel);
        let e1 = faded(&decay, block, 4u * four + 1u, channel);
        let e2 = faded(&decay, block, 4u * four + 2u, channel);
        let e3 = faded(&decay, block, 4u * four + 3u, channel);
        x[four] = vec4f(e0.x, e1.x, e2.x, e3.x);
        out[four] = vec4f(e0.y, e1.y, e2.y, e3.y);
    }
    chunks[4u * (decay_part() + (slot * H + block.head) * N4) + channel] = decay;
    if REMOVES != 0u {
        solve(&x, &out);                // else nothing of S before comes back through U
    }
    for (var four = 0u; four < FOURS; four++) {
        if REMOVES != 0u {
            store(4u * key_part(PART_W) + place, 4u * D4, block, four, x[four]);
        }
        store(4u * key_part(PART_R) + place, 4u * D4, block, four, out[four]);
    }
    var rest = 1.0;
    for (var n = block.tokens; n > 0u; n--) {
        let given = inputs_at(block, n - 1u, channel / 4u);
        let at = place + (n - 1u) * 4u * D4;
        chunks[4u * key_part(PART_B) + at] = given.b[channel % 4u] * rest;
        if ONE_KEY == 0u {
            chunks[4u * key_part(PART_K) + at] = given.k[channel % 4u] * rest;
        }
        rest *= given.w[channel % 4u];
    }
}

// a and r of a token by what S before the chunk has faded until then.
fn faded(decay: ptr<function, f32>, block: Block, token: u32, channel: u32) -> vec2f {
    if token >= block.tokens {
        return vec2f();
    }
    let given = inputs_at(block, token, channel / 4u);
    let before = *decay;
    *decay *= given.w[channel % 4u];
    return vec2f(given.a[channel % 4u] * before, given.r[channel % 4u] * select(*decay, before, READS_OLD != 0u));
}

// U₀ and Y₀ of a channel of the value.
fn solve_values(block: Block, channel: u32) {
    let place = 4u * value_place(block, 0u, 0u) + channel;
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
        store(4u * value_part(PART_U) + place, 4u * V4, block, four, x[four]);
        if ONE_KEY == 0u {
            store(4u * value_part(PART_V) + place, 4u * V4, block, four, v[four]);
        }
        for (var j = 0u; j < 4u; j++) {
            if 4u * four + j < block.tokens {
                y[place + (4u * four + j) * 4u * V4] = out[four][j];
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
    if token >= block.tokens {
        return 0.0;
    }
    return value_at(block, token, channel / 4u)[channel % 4u];
}

// x = (1 - L)⁻¹ x, and what r sees of it added to `out`.
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

// Four tokens by four of a matrix, times what these have.
fn times(matrix: u32, four: u32, before: u32, x: vec4f) -> vec4f {
    let at = matrix * TILES + four * BLOCK + 4u * before;
    return mat4x4f(matrices[at], matrices[at + 1u], matrices[at + 2u], matrices[at + 3u]) * x;
}
