// Staging of x in gemv_int and related kernels.

//# floats: x in workgroup memory as floats, with a gap after each chunk of 32 that puts neighbours in different banks.
// needs format: floats, fours_of, scale_of; norm: gained; rows: x4
const BATCH = min(4u, (STAGED * 8u + WG - 1u) / WG);

var<workgroup> staged: array<vec4f, STAGED * 9u>;

// Part p of a chunk of x: as many columns as a run of W.
struct Part {
    x: array<vec4f, FOURS>,
    sum: f32,
}

// Returns the sum of x² over the values that a lane has staged.
fn stage(start: u32, width: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var base = 0u; base < 8u * STAGED; base += WG * BATCH) {
        var values: array<vec4f, BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            let k = 4u * (base + n * WG + lane);
            values[n] = x4(start, select(0u, k, k < width), width);
        }
        for (var n = 0u; n < BATCH; n++) {
            let e = base + n * WG + lane;
            let value = select(vec4f(), values[n], 4u * e < width);
            if NORMED {
                squares += dot(value, value);
            }
            if e < 8u * STAGED {
                staged[e / 8u * 9u + e % 8u] = gained(value, select(0u, 4u * e, 4u * e < width));
            }
        }
    }
    return squares;
}

fn part_of(chunk: u32, p: u32) -> Part {
    var part: Part;
    var sum = vec4f();
    for (var c = 0u; c < FOURS; c++) {
        part.x[c] = staged[chunk * 9u + p * FOURS + c];
        sum += part.x[c];
    }
    part.sum = (sum.x + sum.y) + (sum.z + sum.w);
    return part;
}

fn product(sum: f32, part: Part, raw: Raw, i: u32) -> f32 {
    let scale = scale_of(raw, i);
    var fours = fours_of(raw, i);
    var x = part.x;
    var dots = 0.0;
    for (var c = 0u; c < FOURS; c++) {
        let q = floats(fours[c]);
        dots = fma(q.w, x[c].w, fma(q.z, x[c].z, fma(q.y, x[c].y, fma(q.x, x[c].x, dots))));
    }
    return fma(scale.x, dots, fma(scale.y, part.sum, sum));
}

//# integer_products: Products of a run of W with one of x, both integers: four products of bytes are one instruction.
// needs format: packed_of; lib/dot16: dot16
const HALVES = FOURS / 4u;              // vec4s of the bytes of a run

const_assert BYTES == 1u || BYTES == 2u;

alias Bytes = array<vec4u, HALVES>;

// Part p of a chunk of x: as many columns as a run of W.
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

//# integers
// x in workgroup memory as integers of BYTES signed bytes, by chunks of 32 that share a scale: four products of bytes of
// x and of W are one instruction. With two bytes, the error of x is at most 1/65278 of the largest number of its chunk.
// A chunk has two vec4s for each byte of an integer, the lowest first, and one vec4 with its scale and the sum of each
// run. The number of vec4s is odd, so that neighbouring chunks are in different banks.
// needs format: scale_of; lib/quantise: bits_of, bytes_of, most_of, rest_of, sum_of_four, words_of_four
// needs linear/staging/integer_products: bytes_of_run, product_of; norm: gained; rows: x4; sum: group_sum
const VECS = 2u * BYTES + 1u;
const BATCH = min(4u, (STAGED * 8u + WG - 1u) / WG);

const_assert WG % 8u == 0u;

var<workgroup> staged: array<vec4u, STAGED * VECS>;

// Returns the sum of x² over the values that a lane has staged. Eight lanes share a chunk.
fn stage(start: u32, width: u32, lane: u32) -> f32 {
    let fours = width / 4u;
    var squares = 0.0;
    for (var base = 0u; base < fours; base += WG * BATCH) {
        var values: array<vec4f, BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            let e = base + n * WG + lane;
            values[n] = x4(start, 4u * select(0u, e, e < fours), width);
        }
        for (var n = 0u; n < BATCH; n++) {
            squares += put_four(values[n], base + n * WG + lane, fours);
        }
    }
    pad(fours, lane);
    return squares;
}

// Stages vec4 e of a row, and returns the sum of x² over it.
fn put_four(values: vec4f, e: u32, fours: u32) -> f32 {
    put(gained(values, 4u * min(e, fours - 1u)), e, e < fours);
    return select(0.0, dot(values, values), NORMED && e < fours);
}

// Chunks beyond the end of a row are zero.
fn pad(fours: u32, lane: u32) {
    for (var chunk = fours / 8u + lane; chunk < STAGED; chunk += WG) {
        staged[place(chunk, BYTES, 0u)] = vec4u();
    }
}

fn put(values: vec4f, e: u32, valid: bool) {
    let most = most_of(values);
    let bits = bits_of(values, most);
    let sum = group_sum(sum_of_four(bits), FOURS);
    var next = sum;
    if FOURS == 4u {
        next = subgroupShuffleXor(sum, 4u);     // the sum of the second run
    }
    let chunk = e / 8u;
    let words = words_of_four(bytes_of(bits), bytes_of(rest_of(bits)), e);
    if valid && e % 4u < BYTES {
        staged[place(chunk, e % 4u, e / 4u % 2u)] = words;
    }
    if valid && e % 8u == 0u {
        let scale = most / LARGEST;
        staged[place(chunk, BYTES, 0u)] = bitcast<vec4u>(vec4f(scale, scale * sum, scale * next, 0.0));
    }
}

// The place of half h of byte b of a chunk; after the last byte, that of its scale and sums.
fn place(chunk: u32, b: u32, h: u32) -> u32 { return chunk * VECS + 2u * b + h; }

fn part_of(chunk: u32, p: u32) -> Part {
    var part: Part;
    let scale_and_sums = bitcast<vec4f>(staged[place(chunk, BYTES, 0u)]);
    part.scale = scale_and_sums.x;
    part.sum = scale_and_sums[1u + p];
    part.low = bytes(chunk, 0u, p);
    if BYTES == 2u {
        part.high = bytes(chunk, 1u, p);
    }
    return part;
}

fn bytes(chunk: u32, b: u32, p: u32) -> Bytes {
    var found: Bytes;
    found[0] = staged[place(chunk, b, p)];
    if HALVES == 2u {
        found[HALVES - 1u] = staged[place(chunk, b, 1u)];
    }
    return found;
}

fn product(sum: f32, part: Part, raw: Raw, i: u32) -> f32 {
    return product_of(sum, part, bytes_of_run(raw, i), scale_of(raw, i));
}
