// A head has one decay, of a + bias and A.
// needs fade: faded
// needs recurrence/delta_tensors: decay_input, parameter_at
// Parameters are the bias [H], A [H], the weight of the norm [N], and maybe taps.
const RATE_AT = H;                  // of A
const GAIN_AT = 2u * H;             // of the weight
const TAPS_AT = GAIN_AT + N;        // of a convolution

var<workgroup> token_decay: array<f32, BLOCK>;

fn prepare_decay(block: Block, lane: u32) {
    if lane < block.tokens {
        let a = decay_input(block.row + lane, block.head) + parameter_at(block.head);
        token_decay[lane] = faded(a, parameter_at(RATE_AT + block.head));
    }
}

fn decay_at(token: u32, _i: u32) -> vec4f { return vec4f(token_decay[token]); }
fn past_key(_i: u32, k: vec4f) -> vec4f { return k; }
fn past_scale(token: u32) -> f32 { return token_decay[token]; }
