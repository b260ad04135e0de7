// x in workgroup memory as integers of BYTES signed bytes, by chunks of 32 that share a scale: four products of bytes of
// x and of W are one instruction. With two bytes x is off by at most 1/65278 of the largest of its chunk.
const VECS = 2u * BYTES;                // of a chunk: two for each byte of an integer, the lowest first
const BATCH = min(4u, (STAGED * 8u + WG - 1u) / WG);
const HALVES = FOURS / 4u;              // vec4s of the bytes of a run

const_assert WG % 8u == 0u;

alias Bytes = array<vec4u, HALVES>;

var<workgroup> staged: array<vec4u, STAGED * VECS>;
var<workgroup> staged_scales: array<f32, STAGED>;
var<workgroup> staged_sums: array<f32, STAGED * PARTS>;

// Part p of a chunk of x, a run of W long.
struct Part {
    low: Bytes,
    high: Bytes,
    scale: f32,
    sum: f32,
}

// Gives the sum of x² over what a lane has staged. Eight lanes have a chunk.
fn stage(start: u32, width: u32, lane: u32) -> f32 {
    let fours = width / 4u;
    var squares = 0.0;
    for (var base = 0u; base < fours; base += WG * BATCH) {
        var values: array<vec4f, BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            values[n] = x4(start, 4u * min(base + n * WG + lane, fours - 1u), width);
        }
        for (var n = 0u; n < BATCH; n++) {
            let e = base + n * WG + lane;
            if NORMED {
                squares += select(0.0, dot(values[n], values[n]), e < fours);
            }
            put(gained(values[n], 4u * min(e, fours - 1u)), e, e < fours);
        }
    }
    for (var chunk = fours / 8u + lane; chunk < STAGED; chunk += WG) {
        staged_scales[chunk] = 0.0;
        for (var p = 0u; p < PARTS; p++) {
            staged_sums[chunk * PARTS + p] = 0.0;
        }
    }
    return squares;
}

fn put(values: vec4f, e: u32, valid: bool) {
    let most = most_of(values);
    var bits = rounded(values, most);
    let sum = reach_add(sum_of_four(bits), FOURS);
    if valid {
        let chunk = e / 8u;
        for (var b = 0u; b < BYTES; b++) {
            staged[place(chunk, b, e / 4u % 2u)][e % 4u] = bytes_of(bits);
            bits = rest_of(bits);
        }
        if e % 8u == 0u {
            staged_scales[chunk] = most / LARGEST;
        }
        if e % FOURS == 0u {
            staged_sums[e / FOURS] = sum;
        }
    }
}

// Where half h of byte b of a chunk lies: such that those of eight neighbours are in different banks.
fn place(chunk: u32, b: u32, h: u32) -> u32 { return chunk * VECS + 2u * b + (h ^ (chunk / 4u % 2u)); }

fn part_of(chunk: u32, p: u32) -> Part {
    var part: Part;
    part.scale = staged_scales[chunk];
    part.sum = staged_sums[chunk * PARTS + p];
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
    let packed = packed_of(raw, i);
    let scale = scale_of(raw, i);
    var q: Bytes;
    q[0] = vec4u(packed[0], packed[1], packed[2], packed[3]);
    q[HALVES - 1u] = vec4u(packed[FOURS - 4u], packed[FOURS - 3u], packed[FOURS - 2u], packed[FOURS - 1u]);
    var total = dots(part.low, q);
    if BYTES == 2u {
        total += 256 * dots(part.high, q);
    }
    return fma(part.scale, fma(scale.x, f32(total), scale.y * part.sum), sum);
}

fn dots(x: Bytes, q: Bytes) -> i32 {
    var sum = dot16(0, x[0], q[0]);
    if HALVES == 2u {
        sum = dot16(sum, x[HALVES - 1u], q[HALVES - 1u]);
    }
    return sum;
}

fn dot16(sum: i32, x: vec4u, q: vec4u) -> i32 {
    let half = dot4I8Packed(x.y, q.y) + (dot4I8Packed(x.x, q.x) + sum);
    return dot4I8Packed(x.w, q.w) + (dot4I8Packed(x.z, q.z) + half);
}
