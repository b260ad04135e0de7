// Each channel of the key has its decay, then(W low + bias), of the one token that a sequence has; W [H · N, RANK].
//
// Lanes share the channels of the head: each has a part of a row of W, and the parts meet in workgroup memory.
// needs format: floats
// needs lib/activation: activation
// needs weights: four_of
@group(0) @binding(2) var<storage, read> low: array<vec4f>;             // [T, RANK / 4]
@group(0) @binding(8) var<storage, read> w: array<vec4u>;               // rows of PIECES times 16 bytes
@group(0) @binding(9) var<storage, read> bias: array<vec4f>;            // [H, N / 4]

const LANES_PER_CHANNEL = max(1u, WG / N);
const CHANNELS = WG / LANES_PER_CHANNEL;        // at a time
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
