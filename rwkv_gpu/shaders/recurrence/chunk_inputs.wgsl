// The inputs of a chunk of tokens.

//# delta_rule: The inputs of a gated delta net, with q and k of length one: k is β k, a is -w k, and b is β k again.
// needs kernel: Inputs; decay: decay_at, prepare_decay; qkv: qkv_at; recurrence/delta_tensors: key_head_of, rate_at
const LANES = WG / BLOCK;           // lanes per token

const ITEMS = BLOCK * N4;           // vec4s of decays, if each channel has one

var<workgroup> squares: array<vec2f, WG>;           // partial sums of squares of q and of k
var<workgroup> token_scales: array<vec3f, BLOCK>;   // the factors of q and of k, and β

fn prepare_tokens(block: Block, lane: u32) {
    let token = lane / LANES;
    let key = key_head_of(block.head) * N4;
    var sum = vec2f();
    if token < block.tokens {
        for (var n = lane % LANES; n < N4; n += LANES) {
            let q = qkv_at(block.row + token, 0u, key + n, false);
            let k = qkv_at(block.row + token, 1u, key + n, false);
            sum += vec2f(dot(q, q), dot(k, k));
        }
    }
    squares[lane] = sum;
    prepare_decay(block, lane);
    workgroupBarrier();
    if lane < block.tokens {
        sum = vec2f();
        for (var i = 0u; i < LANES; i++) {
            sum += squares[lane * LANES + i];
        }
        let scales = inverseSqrt(sum + EPS) * vec2f(inverseSqrt(f32(N)), 1.0);
        token_scales[lane] = vec3f(scales, rate_at(block.row + lane, block.head));
    }
    workgroupBarrier();
}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let key = key_head_of(block.head) * N4 + n;
    let scales = token_scales[token];
    let q = qkv_at(block.row + token, 0u, key, false) * scales.x;
    let k = qkv_at(block.row + token, 1u, key, false) * scales.y;
    let w = decay_at(token, token * N4 + n);
    return Inputs(q, w, k * scales.z, -(w * k), k * scales.z);
}

fn value_at(block: Block, token: u32, n: u32) -> vec4f {
    return qkv_at(block.row + token, 2u, block.head * N4 + n, false);
}

//# heads: q, k and v of each head, head by head, and one decay for all tokens of a head
// needs kernel: Inputs
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;             // [T, H, 3, N / 4]
@group(0) @binding(2) var<storage, read> decays: array<f32>;            // [H]

fn prepare_tokens(_block: Block, _lane: u32) {}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let k = qkv[place_of(block, token, 1u) + n];
    return Inputs(qkv[place_of(block, token, 0u) + n], vec4f(decays[block.head]), k, vec4f(), k);
}

fn value_at(block: Block, token: u32, n: u32) -> vec4f { return qkv[place_of(block, token, 2u) + n]; }

// The start of q (0), k (1) or v (2) of a token.
fn place_of(block: Block, token: u32, which: u32) -> u32 {
    return (3u * ((block.row + token) * H + block.head) + which) * N4;
}

//# time_mix: The inputs of RWKV-7, with κ of length one: a is -κ and b is κ times its rate. k and b differ.
// needs kernel: Inputs; recurrence/chunk: token_place; rwkv/mixed: gate_part, key_of, own_value, part_of
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // k_k, k_a and more [.., H, N / 4]

const LANES = WG / BLOCK;           // lanes per token

var<workgroup> squares: array<f32, WG>;
var<workgroup> token_scale: array<f32, BLOCK>;      // 1 / |κ|

fn prepare_tokens(block: Block, lane: u32) {
    let token = lane / LANES;
    var sum = 0.0;
    if token < block.tokens {
        for (var n = lane % LANES; n < N4; n += LANES) {
            let kk = raw_kappa(token_place(block, token, n), block.head * N4 + n);
            sum += dot(kk, kk);
        }
    }
    squares[lane] = sum;
    workgroupBarrier();
    if lane < block.tokens {
        sum = 0.0;
        for (var i = 0u; i < LANES; i++) {
            sum += squares[lane * LANES + i];
        }
        token_scale[lane] = 1.0 / max(sqrt(sum), 1e-12);
    }
    workgroupBarrier();
}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let place = token_place(block, token, n);
    let d = block.head * N4 + n;
    let kappa = raw_kappa(place, d) * token_scale[token];
    return Inputs(part_of(R, place), gate_part(W, place), key_of(place, d), -kappa, kappa * gate_part(A, place));
}

fn raw_kappa(place: u32, d: u32) -> vec4f { return part_of(K, place) * vectors[d]; }

fn value_at(block: Block, token: u32, n: u32) -> vec4f { return own_value(token_place(block, token, n)); }

//# wkv6: Reads the inputs of RWKV-6, whose recurrence multiplies S by the decay and adds k v. Several heads may share one head of k and v. With FADES, k is multiplied by 1 - decay.
// needs kernel: Inputs; lib/step: apart; recurrence/chunk: token_place
@group(0) @binding(1) var<storage, read> rkvg: array<vec4f>;            // a stack of r [T, H, N / 4], k and v [T, KEY_HEADS, N / 4], and the gate [T, H, N / 4]
@group(0) @binding(2) var<storage, read> decays: array<vec4f>;          // [T, H, N / 4]

const K4 = KEY_HEADS * N4;

fn prepare_tokens(_block: Block, _lane: u32) {}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let place = token_place(block, token, n);
    let w = decays[place];
    var k = rkvg[apart(D4) + shared_place(block, token, n)];
    if FADES != 0u {
        k *= 1.0 - w;
    }
    return Inputs(rkvg[place] * SCALE, w, k, vec4f(), k);
}

fn value_at(block: Block, token: u32, n: u32) -> vec4f {
    return rkvg[apart(D4) + apart(K4) + shared_place(block, token, n)];
}

// The place of a vec4 of k or v, in the key head that this head shares with others.
fn shared_place(block: Block, token: u32, n: u32) -> u32 {
    return (block.row + token) * K4 + block.head / (H / KEY_HEADS) * N4 + n;
}
