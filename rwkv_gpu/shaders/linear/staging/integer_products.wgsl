// Products of a run of W with one of x, both integers: four products of bytes are one instruction.
// needs format: packed_of
// needs lib/dot16: dot16
const HALVES = FOURS / 4u;              // vec4s of the bytes of a run

const_assert BYTES == 1u || BYTES == 2u;

alias Bytes = array<vec4u, HALVES>;

// Part p of a chunk of x, a run of W long.
struct Part {
    low: Bytes,
    high: Bytes,
    scale: f32,
    sum: f32,
}

fn bytes_of_run(raw: Raw, i: u32) -> Bytes {
    let packed = packed_of(raw, i);
    var q: Bytes;
    q[0] = vec4u(packed[0], packed[1], packed[2], packed[3]);
    q[HALVES - 1u] = vec4u(packed[FOURS - 4u], packed[FOURS - 3u], packed[FOURS - 2u], packed[FOURS - 1u]);
    return q;
}

fn product_of(sum: f32, part: Part, q: Bytes, scale: vec2f) -> f32 {
    var total = dots(part.low, q);
    if BYTES == 2u {
        total += 256 * dots(part.high, q);
    }
    return fma(scale.x * part.scale, f32(total), fma(scale.y, part.sum, sum));
}

fn dots(x: Bytes, q: Bytes) -> i32 {
    var sum = dot16(0, x[0], q[0]);
    if HALVES == 2u {
        sum = dot16(sum, x[HALVES - 1u], q[HALVES - 1u]);
    }
    return sum;
}
