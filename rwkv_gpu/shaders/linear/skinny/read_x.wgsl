// Integers of x (linear/skinny/quantised_x) read where they lie.
const WHOLE = false;                    // nothing is staged

fn stage(_matrix: Matrix, _t0: u32, _piece: u32, _lane: u32) {}

// Of a chunk beyond the end of a row, zeros.
fn part_of(matrix: Matrix, t0: u32, t: u32, _piece: u32, chunk: u32, p: u32) -> Part {
    let chunks = matrix.k / 32u;
    let whole = chunks % (LANES_PER_ROW * PREFETCH) == 0u;
    let at = matrix.x + min(t0 + t, table.rows - 1u) * VECS * chunks + select(min(chunk, chunks - 1u), chunk, whole);
    var part: Part;
    let scales = bitcast<vec4f>(x[at + 2u * BYTES * chunks]) * select(f32(chunk < chunks), 1.0, whole);
    part.scale = scales.x;
    part.sum = scales[select(1u + p, 3u, PARTS == 1u)];
    part.low = bytes(at, chunks, p);
    if BYTES == 2u {
        part.high = bytes(at + 2u * chunks, chunks, p);
    }
    return part;
}

fn bytes(at: u32, chunks: u32, p: u32) -> Bytes {
    var found: Bytes;
    found[0] = x[at + p * chunks];
    if HALVES == 2u {
        found[HALVES - 1u] = x[at + chunks];
    }
    return found;
}
