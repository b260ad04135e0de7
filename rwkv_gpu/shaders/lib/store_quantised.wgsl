// Integers as products find them in memory, an x after the other: BY_ROWS, [QUANTISED_ROWS, PLANES, K / 32] vec4s, else [K / 32, PLANES, QUANTISED_ROWS].
// needs lib/quantise: bits_of, bytes_of, most_of, rest_of, sum_of_four
// needs sum: group_sum
const PLANES = 2u * BYTES + 1u;         // two for each byte of an integer, the lowest first, then (scale, sums)

// Lays down columns 4 e .. 4 e + 4 of row t of an x of some chunks. Eight lanes beside each other have one.
fn store_quantised(values: vec4f, start: u32, t: u32, e: u32, chunks: u32, norm: f32, valid: bool) {
    let far = select(QUANTISED_ROWS, chunks, BY_ROWS == 1u);      // between planes of a chunk
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
