// TB rows of x in workgroup memory as integers of BYTES signed bytes, by chunks of 32 that share a scale, STAGED of a row
// at a time. A chunk is two vec4s for each byte of an integer, the lowest first, with its scale and the sum of each run
// beside them; those of neighbouring chunks lie side by side.
// needs lib/quantise: bits_of, bytes_of, most_of, rest_of, sum_of_four, words_of_four
// needs lib/sum/squares: add_squares
// needs linear/skinny/shared_x: place, scale_at
// needs norm: gained
// needs rows: x4
// needs sum: group_sum
const WHOLE = PIECED == 0u;             // whether all of a row is staged at once
const LOADS = (STAGED * 8u + WG - 1u) / WG;     // vec4s of a row of x that a lane stages
const EVEN = LOADS * WG == STAGED * 8u;         // whether all lanes stage as many
const BATCH = min(LOADS, max(1u, 4u / TB));

const_assert WG % 8u == 0u;

var<private> squares: array<f32, TB>;

// Stages TB rows of x from a chunk on. Eight lanes have a chunk.
fn stage(matrix: Matrix, t0: u32, piece: u32, lane: u32) {
    if NORMED && piece == 0u {
        squares = array<f32, TB>();
    }
    for (var base = 0u; base < LOADS; base += BATCH) {
        var values: array<vec4f, TB * BATCH>;
        for (var n = 0u; n < BATCH; n++) {
            let e = (base + n) * WG + lane;
            let k = 32u * piece + 4u * e;
            let own = k < matrix.k && (EVEN || e < STAGED * 8u);    // others stage the rest, and may store it
            for (var t = 0u; t < TB; t++) {
                let start = matrix.x + min(t0 + t, table.rows - 1u) * matrix.k;
                values[n * TB + t] = x4(start, select(0u, k, own), matrix.k);
            }
        }
        for (var n = 0u; n < BATCH; n++) {
            let e = (base + n) * WG + lane;
            let k = 32u * piece + 4u * e;
            let valid = k < matrix.k && e < 8u * STAGED;
            for (var t = 0u; t < TB; t++) {
                let value = select(vec4f(), values[n * TB + t], valid);
                if NORMED {
                    squares[t] += dot(value, value);
                }
                put(gained(value, select(0u, k, k < matrix.k)), t, e);
            }
        }
    }
    for (var t = 0u; t < TB; t++) {
        add_squares(squares[t], t, lane);
    }
}

fn put(values: vec4f, t: u32, e: u32) {
    let most = most_of(values);
    let bits = bits_of(values, most);
    let sum = group_sum(sum_of_four(bits), FOURS);
    let chunk = e / 8u;
    let words = words_of_four(bytes_of(bits), bytes_of(rest_of(bits)), e);
    if e < 8u * STAGED && e % 4u < BYTES {
        staged[place(t, chunk, e % 4u, e / 4u % 2u)] = words;
    }
    if e < 8u * STAGED {
        if e % 8u == 0u {
            scales[scale_at(t, chunk, 0u)] = most / LARGEST;
        }
        if e % FOURS == 0u {
            scales[scale_at(t, chunk, 1u + e % 8u / FOURS)] = most / LARGEST * sum;
        }
    }
}
