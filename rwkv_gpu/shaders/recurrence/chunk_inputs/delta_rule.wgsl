// A gated delta net: k is β k, a is -w k and b is k again, with q and k of length one
// needs kernel: Inputs
// needs decay: decay_at, prepare_decay
// needs qkv: qkv_at
// needs recurrence/delta_tensors: key_head_of, rate_at
const LANES = WG / BLOCK;           // of a token

const ITEMS = BLOCK * N4;           // vec4s of decays by channel

var<workgroup> squares: array<vec2f, WG>;           // of q and of k
var<workgroup> token_scales: array<vec3f, BLOCK>;   // of q and of k, and β

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
