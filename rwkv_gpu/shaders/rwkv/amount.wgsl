// The share of the previous row that is mixed in.

//# constant: The share is the same for every row.
fn amounts(m: u32, _first: u32, d: u32) -> array<f32, ROWS> {
    var found: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) {
        found[i] = mix[m * D + d];
    }
    return found;
}

//# low_rank: Each row adds U_i low_i to the share that is the same for all.
@group(0) @binding(5) var<storage, read> low: array<f32>;       // [T, MIXES, RANK]
@group(0) @binding(6) var<storage, read> up: array<f32>;        // [MIXES, D, RANK]

fn amounts(m: u32, first: u32, d: u32) -> array<f32, ROWS> {
    var found: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) {
        found[i] = mix[m * D + d];
    }
    for (var r = 0u; r < RANK; r++) {
        let u = up[(m * D + d) * RANK + r];
        for (var i = 0u; i < ROWS; i++) {
            found[i] += u * low[(min(first + i, step.rows - 1u) * MIXES + m) * RANK + r];
        }
    }
    return found;
}
