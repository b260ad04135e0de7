// TB rows of x in workgroup memory as integers of BYTES signed bytes, STAGED chunks of 32 columns of a row at a time: two vec4s
// for each byte, the lowest first, a scale, and the sum of each run. Those of neighbouring chunks lie side by side.
var<workgroup> staged: array<vec4u, TB * 2u * BYTES * STAGED>;
var<workgroup> scales: array<f32, TB * (1u + PARTS) * STAGED>;

// Where half h of byte b of a chunk lies, and what is said of it.
fn place(t: u32, chunk: u32, b: u32, h: u32) -> u32 { return ((t * BYTES + b) * 2u + h) * STAGED + chunk; }
fn scale_at(t: u32, chunk: u32, which: u32) -> u32 { return (t * (1u + PARTS) + which) * STAGED + chunk; }

fn part_of(_matrix: Matrix, _t0: u32, t: u32, piece: u32, after: u32, p: u32) -> Part {
    let chunk = after - piece;
    var part: Part;
    part.scale = scales[scale_at(t, chunk, 0u)];
    part.sum = scales[scale_at(t, chunk, 1u + p)];
    part.low = bytes(t, chunk, 0u, p);
    if BYTES == 2u {
        part.high = bytes(t, chunk, 1u, p);
    }
    return part;
}

fn bytes(t: u32, chunk: u32, b: u32, p: u32) -> Bytes {
    var found: Bytes;
    found[0] = staged[place(t, chunk, b, p)];
    if HALVES == 2u {
        found[HALVES - 1u] = staged[place(t, chunk, b, 1u)];
    }
    return found;
}
