// Functions that kernels of several families call.

//# activation: The activations, by their number in the vocabulary.
fn activation(which: u32, y: f32) -> f32 {
    switch which {
        case NONE: { return y; }
        case RELU2: { return max(y, 0.0) * max(y, 0.0); }
        case SILU: { return y / (1.0 + exp(-y)); }
        case SIGMOID: { return 1.0 / (1.0 + exp(-y)); }
        // Some drivers' tanh overflows past 44, so the argument is limited to 10, where tanh is 1 in float32.
        case TANH: { return tanh(clamp(y, -10.0, 10.0)); }
        case DECAY: { return exp(-0.606531 / (1.0 + exp(-y))); }
        case DECAY6: { return exp(-exp(min(y, 80.0))); }
        case GELU: {
            return 0.5 * y * (1.0 + tanh(clamp(0.7978845608 * y * (1.0 + 0.044715 * y * y), -10.0, 10.0)));
        }
        case SOFTPLUS: { return select(log(1.0 + exp(min(y, 20.0))), y, y > 20.0); }
        case RELU: { return max(y, 0.0); }
        default: { return y; }
    }
}

//# dot16: Adds the dot product of 16 signed bytes of x and W to a sum.
fn dot16(sum: i32, x: vec4u, q: vec4u) -> i32 {
    let half = dot4I8Packed(x.y, q.y) + (dot4I8Packed(x.x, q.x) + sum);
    return dot4I8Packed(x.w, q.w) + (dot4I8Packed(x.z, q.z) + half);
}

//# softplus: log(1 + exp(x)); x itself above 20, where float32 has no difference
fn softplus(x: f32) -> f32 { return select(log(1.0 + exp(x)), x, x > 20.0); }

//# store_quantised
// Stores integers in the layout that products read, one x after the other: BY_ROWS, [QUANTISED_ROWS, PLANES, K / 32] vec4s, else [K / 32, PLANES, QUANTISED_ROWS].
// needs lib/quantise: bits_of, bytes_of, most_of, rest_of, sum_of_four; sum: group_sum
const PLANES = 2u * BYTES + 1u;         // two per byte of an integer, the lowest byte first, then (scale, sums)

// Stores columns 4 e .. 4 e + 4 of row t of an x. Eight neighbouring lanes store one chunk.
fn store_quantised(values: vec4f, start: u32, t: u32, e: u32, chunks: u32, norm: f32, valid: bool) {
    let far = select(QUANTISED_ROWS, chunks, BY_ROWS == 1u);      // distance of two planes of a chunk
    let most = most_of(values);
    var bits = bits_of(values, most);
    let sum = group_sum(sum_of_four(bits), 4u);
    let other = subgroupShuffleXor(sum, 4u);
    if valid {
        let chunk = start + select(e / 8u * PLANES * QUANTISED_ROWS + t, t * PLANES * chunks + e / 8u, BY_ROWS == 1u);
        for (var b = 0u; b < BYTES; b++) {
            quantised[4u * (chunk + (2u * b + e / 4u % 2u) * far) + e % 4u] = bytes_of(bits);
            bits = rest_of(bits);
        }
        if e % 8u == 0u {
            let scale = most / LARGEST * norm;
            let at = 4u * (chunk + 2u * BYTES * far);
            quantised[at] = bitcast<u32>(scale);
            quantised[at + 1u] = bitcast<u32>(scale * sum);
            quantised[at + 2u] = bitcast<u32>(scale * other);
            quantised[at + 3u] = bitcast<u32>(scale * (sum + other));
        }
    }
}

//# last_workgroup: Detects the last of several workgroups to finish. It continues with the results of all, so no
// workgroup waits.
@group(0) @binding(20) var<storage, read_write> done: array<atomic<u32>>;       // counts of finished workgroups; reset to 0

var<workgroup> is_last: vec4u;      // 16 bytes, as loads of fragments need multiples of 16

// Counts a workgroup of `count` as finished, and sets `is_last` if it is the last one.
fn count_done(place: u32, count: u32, lane: u32) {
    workgroupBarrier();
    storageBarrier();
    if lane == 0u {
        let before = atomicAdd(&done[place], 1u);
        is_last = vec4u(u32(before + 1u == count));
        if is_last.x == 1u {
            atomicStore(&done[place], 0u);
        }
    }
    workgroupBarrier();
    storageBarrier();
}
