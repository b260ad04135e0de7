// Scores by keys as the bytes that they are, and queries as integers of 16 bits: 256 times a coarse byte and a fine one.
// needs bits: bytes_of, in_byte_order
// needs pack: Each
// needs raw: scale_of
struct Query {
    bytes: array<vec4u, PACK>,  // of each head: coarse bytes of 8 dims, then fine ones
    start: array<i32, PACK>,    // what makes up for quants that are stored with an offset
}

const LARGEST = 32512.0;        // a coarse byte of 127 and a fine one of 0

fn unit_of(largest: Each) -> Each { return max(largest, Each(1e-30)) / LARGEST; }

fn query_of(low: Pack, high: Pack, unit: Each) -> Query {
    var q: Query;
    for (var j = 0u; j < PACK; j++) {
        let x = in_byte_order(low[j] / unit[j], high[j] / unit[j]);
        let first = vec4i(round(x.low));
        let second = vec4i(round(x.high));
        let coarse = (first + 128) >> vec4u(8u);
        let coarse2 = (second + 128) >> vec4u(8u);
        q.bytes[j] = vec4u(packed_bytes(coarse), packed_bytes(coarse2), packed_bytes(first - coarse * 256), packed_bytes(second - coarse2 * 256));
        q.start[j] = -QUANT_OFFSET * (dot(first, vec4i(1)) + dot(second, vec4i(1)));
    }
    return q;
}

fn packed_bytes(x: vec4i) -> u32 {
    let b = vec4u(x) & vec4u(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

// The part of 8 dims of a key, which are number c of a head.
fn score_of(raw: Raw, q: Query, c: u32) -> Each {
    let key = bytes_of(raw.words);
    let scale = scale_of(raw, c);
    var score: Each;
    for (var j = 0u; j < PACK; j++) {
        let b = q.bytes[j];
        let coarse = dot4I8Packed(key.x, b.x) + dot4I8Packed(key.y, b.y);
        score[j] = f32(256 * coarse + (q.start[j] + dot4I8Packed(key.x, b.z) + dot4I8Packed(key.y, b.w))) * scale;
    }
    return score;
}
