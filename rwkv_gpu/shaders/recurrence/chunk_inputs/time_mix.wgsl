// RWKV-7: a is -κ and b is κ by its rate, with κ of length one; k and b differ
// needs kernel: Inputs
// needs recurrence/chunk: key_place
// needs rwkv/mixed: gate_part, key_of, own_value, part_of
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // k_k, k_a and more [.., H, N / 4]

const LANES = WG / BLOCK;           // of a token

var<workgroup> squares: array<f32, WG>;
var<workgroup> token_scale: array<f32, BLOCK>;      // 1 / |κ|

fn prepare_tokens(block: Block, lane: u32) {
    let token = lane / LANES;
    var sum = 0.0;
    if token < block.tokens {
        for (var n = lane % LANES; n < N4; n += LANES) {
            let kk = raw_kappa(key_place(block, token, n), block.head * N4 + n);
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
    let place = key_place(block, token, n);
    let d = block.head * N4 + n;
    let kappa = raw_kappa(place, d) * token_scale[token];
    return Inputs(part_of(R, place), gate_part(W, place), key_of(place, d), -kappa, kappa * gate_part(A, place));
}

fn raw_kappa(place: u32, d: u32) -> vec4f { return part_of(K, place) * vectors[d]; }

fn value_at(block: Block, token: u32, n: u32) -> vec4f { return own_value(key_place(block, token, n)); }
