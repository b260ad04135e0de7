// TB rows of x, integers already (`integers`), read where they lie: [T, VECS, K / 32].
@group(0) @binding(2) var<storage, read> x: array<vec4u>;
const VECS = 2u * BYTES + 1u;
const HALVES = FOURS / 4u;              // vec4s of the bytes of a run
const NORMED = false;

alias Bytes = array<vec4u, HALVES>;
var<private> start_of_x: u32;
var<private> chunks_of_x: u32;

fn look(_lane: u32) {}
fn root(_s: f32, _k: u32) -> f32 { return 1.0; }
fn squares_of(_t: u32) -> f32 { return 0.0; }
fn stage(matrix: Matrix, t0: u32, piece: u32, lane: u32) {
    chunks_of_x = matrix.k / 32u;
    start_of_x = matrix.x + t0 * VECS * chunks_of_x;
}
fn look_up(t: u32, chunk: u32, b: u32, h: u32) -> vec4u { return x[start_of_x + (t * VECS + 2u * b + h) * chunks_of_x + chunk]; }

// Part p of a chunk of x, a run of W long.
struct Part {
    low: Bytes,
    high: Bytes,
    scale: f32,
    sum: f32,
}

fn part_of(t: u32, chunk: u32, p: u32) -> Part {
    var part: Part;
    let said = bitcast<vec4f>(look_up(t, chunk, BYTES, 0u));
    part.scale = said.x;
    part.sum = said[select(1u + p, 3u, PARTS == 1u)];
    part.low = bytes(t, chunk, 0u, p);
    if BYTES == 2u {
        part.high = bytes(t, chunk, 1u, p);
    }
    return part;
}

fn bytes(t: u32, chunk: u32, b: u32, p: u32) -> Bytes {
    var found: Bytes;
    found[0] = look_up(t, chunk, b, p);
    if HALVES == 2u {
        found[HALVES - 1u] = look_up(t, chunk, b, 1u);
    }
    return found;
}

fn bytes_of_run(raw: Raw, i: u32) -> Bytes {
    let packed = packed_of(raw, i);
    var q: Bytes;
    q[0] = vec4u(packed[0], packed[1], packed[2], packed[3]);
    q[HALVES - 1u] = vec4u(packed[FOURS - 4u], packed[FOURS - 3u], packed[FOURS - 2u], packed[FOURS - 1u]);
    return q;
}

fn product(sum: f32, part: Part, q: Bytes, scale: vec2f) -> f32 {
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
