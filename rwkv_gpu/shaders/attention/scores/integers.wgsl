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
    let scale = 1.0 / unit;
    for (var j = 0u; j < PACK; j++) {
        let x = in_byte_order(low[j] * scale[j], high[j] * scale[j]);
        let first = integers(x.low);
        let second = integers(x.high);
        q.bytes[j] = vec4u(bytes((first + 128u) >> vec4u(8u)), bytes((second + 128u) >> vec4u(8u)), bytes(first), bytes(second));
        let sum = (first & vec4u(0xffffffu)) + (second & vec4u(0xffffffu));
        q.start[j] = -QUANT_OFFSET * i32(sum.x + sum.y + sum.z + sum.w - 8u * 0x400000u);
    }
    return q;
}

// x rounded, plus 0x4b400000: a float of 1.5 · 2^23 has no bits for fractions. Below 24 bits it is an integer plus 2^22.
fn integers(x: vec4f) -> vec4u { return bitcast<vec4u>(x + 12582912.0); }

// The last byte of each: of a fine one, what is left of an integer when 256 times the coarse one is taken away.
fn bytes(x: vec4u) -> u32 {
    let b = x & vec4u(255u);
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
