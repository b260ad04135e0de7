// Scores of decode, by floats or by integers.

//# floats: Scores from keys as floats.
// needs raw: eight_of, scale_of
alias Query = array<Pack, 2>;    // the lower 4 of 8 dims and the upper; DirectX's compiler crashes at matrices in a local structure

fn query_of(low: Pack, high: Pack) -> Query { return Query(low, high); }

// The part of the score from dims 8 c .. 8 c + 8 of a key.
fn score_of(raw: Raw, q: Query, c: u32) -> Each {
    let key = eight_of(raw);
    return (key.low * q[0] + key.high * q[1]) * scale_of(raw, c);
}

//# integers
// Scores from keys and queries as bytes. 8 bits are enough: a query has a scale for each 8 dims, and a key has one for
// each 32. So a query is rounded more finely than a key, and a large dim of a query reduces the precision of only 7
// others.
// needs bits: bytes_of, in_byte_order; pack: Each, largest_of_each; raw: scale_of
struct Query {
    unit: Each,
    bytes: array<vec2u, PACK>,  // 8 dims of each head
    start: array<i32, PACK>,    // the correction for quants that are stored with an offset
}

const LARGEST = 127.0;

fn query_of(low: Pack, high: Pack) -> Query {
    var q: Query;
    q.unit = max(max(largest_of_each(low), largest_of_each(high)), Each(1e-30)) / LARGEST;
    let scale = 1.0 / q.unit;
    for (var j = 0u; j < PACK; j++) {
        let x = in_byte_order(low[j] * scale[j], high[j] * scale[j]);
        let first = integers(x.low);
        let second = integers(x.high);
        q.bytes[j] = vec2u(bytes(first), bytes(second));
        let sum = (first & vec4u(0xffffffu)) + (second & vec4u(0xffffffu));
        q.start[j] = -QUANT_OFFSET * i32(sum.x + sum.y + sum.z + sum.w - 8u * 0x400000u);
    }
    return q;
}

// x rounded, plus 0x4b400000. Adding 1.5 · 2^23 leaves no bits for fractions, so the low 23 bits are an integer plus
// 2^22.
fn integers(x: vec4f) -> vec4u { return bitcast<vec4u>(x + 12582912.0); }

// The last byte of each word.
fn bytes(x: vec4u) -> u32 {
    let b = x & vec4u(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

// The part of the score from dims 8 c .. 8 c + 8 of a key.
fn score_of(raw: Raw, q: Query, c: u32) -> Each {
    let key = bytes_of(raw.words);
    let scale = scale_of(raw, c);
    var score: Each;
    for (var j = 0u; j < PACK; j++) {
        let b = q.bytes[j];
        score[j] = f32(q.start[j] + dot4I8Packed(key.x, b.x) + dot4I8Packed(key.y, b.y)) * (scale * q.unit[j]);
    }
    return score;
}
