// TB rows of integers of x (linear/skinny/quantised_x) copied into workgroup memory.
// needs linear/skinny/shared_x: scale_at
const WHOLE = PIECED == 0u;             // whether all of a row is staged at once
const COPIES = (TB * VECS * STAGED + WG - 1u) / WG;     // that a lane makes

// From a chunk on. Beyond the end of a row integers mean zero.
fn stage(matrix: Matrix, t0: u32, piece: u32, lane: u32) {
    let chunks = matrix.k / 32u;
    var values: array<vec4u, COPIES>;
    for (var n = 0u; n < COPIES; n++) {
        let e = min(n * WG + lane, TB * VECS * STAGED - 1u);
        let row = min(t0 + e / (VECS * STAGED), table.rows - 1u) * VECS + e / STAGED % VECS;
        values[n] = x[matrix.x + row * chunks + min(piece + e % STAGED, chunks - 1u)];
    }
    for (var n = 0u; n < COPIES; n++) {
        let e = n * WG + lane;
        let t = e / (VECS * STAGED);
        let vec = e / STAGED % VECS;
        let chunk = e % STAGED;
        if e < TB * VECS * STAGED {
            if vec < 2u * BYTES {
                staged[(t * 2u * BYTES + vec) * STAGED + chunk] = values[n];
            } else {
                let all = bitcast<vec4f>(values[n]);
                let valid = piece + chunk < chunks;
                scales[scale_at(t, chunk, 0u)] = select(0.0, all.x, valid);
                scales[scale_at(t, chunk, 1u)] = select(0.0, select(all.y, all.w, PARTS == 1u), valid);
                if PARTS == 2u {
                    scales[scale_at(t, chunk, PARTS)] = select(0.0, all.z, valid);
                }
            }
        }
    }
}
