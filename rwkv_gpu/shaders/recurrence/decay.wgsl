// The decays of the state.

//# by_channel: Each channel of the key has a decay, computed from a + bias and A.
// needs fade: faded; recurrence/delta_tensors: decay_input, parameter_at
// Parameters are the bias [H, N], A [H], the weight of the norm [N], and taps if a convolution is fused.
const RATE_AT = H * N;              // the start of A
const GAIN_AT = H * N + H;          // the start of the norm weight
const TAPS_AT = GAIN_AT + N;        // the start of the convolution's taps

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

//# by_head: A head has one decay, computed from a + bias and A.
// needs fade: faded; recurrence/delta_tensors: decay_input, parameter_at
// Parameters are the bias [H], A [H], the weight of the norm [N], and taps if a convolution is fused.
const RATE_AT = H;                  // the start of A
const GAIN_AT = 2u * H;             // the start of the norm weight
const TAPS_AT = GAIN_AT + N;        // the start of the convolution's taps

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

//# constant: A head has one decay, the same for all tokens.
@group(0) @binding(2) var<storage, read> decays: array<f32>;            // [H]

var<private> head_decay: vec4f;

fn prepare_decay(block: Block, _lane: u32) { head_decay = vec4f(decays[block.head]); }
fn decay_at(_token: u32, _i: u32) -> vec4f { return head_decay; }

//# given: Each channel of the key has a decay between 0 and 1, computed by an earlier dispatch.
// needs recurrence/walk: item_place
@group(0) @binding(2) var<storage, read> decays: array<vec4f>;          // [T, H, N / 4]

var<workgroup> block_w: array<vec4f, ITEMS>;

fn prepare_decay(block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * N4; i += WG) {
        block_w[i] = decays[item_place(block, i)];
    }
}

fn decay_at(_token: u32, i: u32) -> vec4f { return block_w[i]; }

//# low_rank
// Each channel of the key has a decay then(W low + bias), for steps with one token per sequence; W [H · N, RANK].
//
// Lanes share the channels of the head: each has a part of a row of W, and the parts are added in workgroup memory.
// needs format: floats; lib/activation: activation; weights: four_of
@group(0) @binding(2) var<storage, read> low: array<vec4f>;             // [T, RANK / 4]
@group(0) @binding(8) var<storage, read> w: array<vec4u>;               // rows of PIECES times 16 bytes
@group(0) @binding(9) var<storage, read> bias: array<vec4f>;            // [H, N / 4]

const LANES_PER_CHANNEL = max(1u, WG / N);
const CHANNELS = WG / LANES_PER_CHANNEL;        // channels at a time
const PIECES_EACH = (PIECES + LANES_PER_CHANNEL - 1u) / LANES_PER_CHANNEL;

var<private> plane: vec4u;
var<workgroup> decay_parts: array<f32, N * LANES_PER_CHANNEL>;
var<workgroup> block_w: array<vec4f, ITEMS>;

fn prepare_decay(block: Block, lane: u32) {
    let part = lane % LANES_PER_CHANNEL;
    for (var n = lane / LANES_PER_CHANNEL; n < N; n += CHANNELS) {
        var sum = 0.0;
        for (var i = 0u; i < PIECES_EACH; i++) {
            let piece = i * LANES_PER_CHANNEL + part;
            let raw = w[(block.head * N + n) * PIECES + min(piece, PIECES - 1u)];
            for (var f = 0u; f < FOURS; f++) {
                let k4 = piece * FOURS + f;
                sum += select(0.0, dot(floats(four_of(raw, f)), low[block.row * (RANK / 4u) + min(k4, RANK / 4u - 1u)]), k4 < RANK / 4u);
            }
        }
        decay_parts[n * LANES_PER_CHANNEL + part] = sum;
    }
    workgroupBarrier();
    for (var i = lane; i < N4; i += WG) {
        let d = 4u * i;
        let sums = bias[block.head * N4 + i] + vec4f(channel_sum(d), channel_sum(d + 1u), channel_sum(d + 2u), channel_sum(d + 3u));
        block_w[i] = vec4f(
            activation(THEN, sums.x), activation(THEN, sums.y), activation(THEN, sums.z), activation(THEN, sums.w)
        );
    }
}

fn channel_sum(d: u32) -> f32 {
    var sum = 0.0;
    for (var part = 0u; part < LANES_PER_CHANNEL; part++) {
        sum += decay_parts[d * LANES_PER_CHANNEL + part];
    }
    return sum;
}

fn decay_at(_token: u32, i: u32) -> vec4f { return block_w[i]; }
