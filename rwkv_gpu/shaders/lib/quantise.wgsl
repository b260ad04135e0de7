// Quantises floats to integers of BYTES signed bytes, 32 columns of a row per scale, by eight neighbouring lanes.
const LARGEST = array<f32, 3>(0.0, 127.0, 32639.0)[BYTES];
const ROUNDER = 12582912.0;             // 1.5 · 2^23: adding a number to it puts the rounded integer in its lowest bits

const_assert BYTES == 1u || BYTES == 2u;

// The largest magnitude of 32 columns. Magnitudes are compared as integers, whose order is the same; NaN is the
// largest.
fn most_of(values: vec4f) -> f32 {
    let sizes = bitcast<vec4u>(values) & vec4u(0x7fffffffu);
    var most = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    return bitcast<f32>(max(most, subgroupShuffleXor(most, 4u)));
}

// Integers in the lowest bits of words; `most` is the largest magnitude of their 32 columns.
fn bits_of(values: vec4f, most: f32) -> vec4u {
    let inverse = select(LARGEST / most, 0.0, most < 1e-30);
    return bitcast<vec4u>(fma(values, vec4f(inverse), vec4f(ROUNDER))) - vec4u(bitcast<u32>(ROUNDER));
}

fn sum_of_four(bits: vec4u) -> f32 { return f32(bitcast<i32>(bits.x + bits.y + bits.z + bits.w)); }

// The lowest bytes of integers, and the remainder, given that the bytes are signed.
fn bytes_of(v: vec4u) -> u32 {
    return (v.x & 255u) | ((v.y & 255u) << 8u) | ((v.z & 255u) << 16u) | (v.w << 24u);
}

fn rest_of(v: vec4u) -> vec4u { return (v + vec4u(128u)) >> vec4u(8u); }

// The first of four neighbouring lanes gets their low words, the second their high words. So one lane writes a whole
// vector: in WGSL, a write to one component may also write the others. One shuffle serves both lanes, because a
// processor executes one shuffle at a time.
fn words_of_four(low: u32, high: u32, lane: u32) -> vec4u {
    let odd = lane % 2u == 1u;
    let other = subgroupShuffleXor(select(high, low, odd), 1u);
    let pair = select(vec2u(low, other), vec2u(other, high), odd);
    return vec4u(pair, subgroupShuffleXor(pair, 2u));
}
