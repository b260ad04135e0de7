// Floats as integers of BYTES signed bytes, 32 columns of a row to a scale, by eight lanes beside each other.
const LARGEST = array<f32, 3>(0.0, 127.0, 32639.0)[BYTES];
const ROUNDER = 12582912.0;             // 1.5 · 2^23: what is added to it lies in its lowest bits as an integer

const_assert BYTES == 1u || BYTES == 2u;

// The largest of 32 columns. As integers their sizes compare alike, and NaN is the largest.
fn most_of(values: vec4f) -> f32 {
    let sizes = bitcast<vec4u>(values) & vec4u(0x7fffffffu);
    var most = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    return bitcast<f32>(max(most, subgroupShuffleXor(most, 4u)));
}

fn rounded(values: vec4f, most: f32) -> vec4u {
    let inverse = select(LARGEST / most, 0.0, most < 1e-30);
    return bitcast<vec4u>(fma(values, vec4f(inverse), vec4f(ROUNDER))) - vec4u(bitcast<u32>(ROUNDER));
}

fn sum_of_four(bits: vec4u) -> f32 { return f32(bitcast<i32>(bits.x + bits.y + bits.z + bits.w)); }

// The words of four lanes beside each other, for the first of them. WGSL lets a write to a component of a vector write the
// others, too: so one lane writes the whole.
fn of_four(word: u32) -> vec4u {
    let pair = vec2u(word, subgroupShuffleXor(word, 1u));
    return vec4u(pair, subgroupShuffleXor(pair, 2u));
}

// The lowest bytes, and what is left, as they have a sign.
fn bytes_of(v: vec4u) -> u32 {
    return (v.x & 255u) | ((v.y & 255u) << 8u) | ((v.z & 255u) << 16u) | (v.w << 24u);
}

fn rest_of(v: vec4u) -> vec4u { return (v + vec4u(128u)) >> vec4u(8u); }
