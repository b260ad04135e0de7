// Each channel of the key has its decay, of a + bias and A.
// needs fade: faded
// needs recurrence/delta_tensors: decay_input, parameter_at
// Parameters are the bias [H, N], A [H], the weight of the norm [N], and maybe taps.
const RATE_AT = H * N;              // of A
const GAIN_AT = H * N + H;          // of the weight
const TAPS_AT = GAIN_AT + N;        // of a convolution

var<workgroup> block_w: array<vec4f, ITEMS>;

fn prepare_decay(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        let row = block.row + i / N4;
        let d = block.head * N + 4u * (i % N4);
        let rate = parameter_at(RATE_AT + block.head);
        block_w[i] = vec4f(decay_of(row, d, rate), decay_of(row, d + 1u, rate), decay_of(row, d + 2u, rate), decay_of(row, d + 3u, rate));
    }
}

fn decay_of(row: u32, d: u32, rate: f32) -> f32 { return faded(decay_input(row, d) + parameter_at(d), rate); }

fn decay_at(_token: u32, i: u32) -> vec4f { return block_w[i]; }
fn past_key(i: u32, k: vec4f) -> vec4f { return block_w[i] * k; }
fn past_scale(_token: u32) -> f32 { return 1.0; }
