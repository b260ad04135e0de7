// y_i[t] = x[t] + (before[t] - x[t]) · amount_i[t]      one lane for ROWS rows and a column
// needs amount: amounts; lib/step: apart
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> before: array<f32>;    // [T, D]
@group(0) @binding(3) var<storage, read> mix: array<f32>;       // [MIXES, D]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;   // [MIXES, T, D], a stack

const_assert D % 4u == 0u;

fn run(group: u32, lane: u32) {
    let first = group / ACROSS * ROWS;
    let d = group % ACROSS * WG + lane;
    if d >= D {
        return;
    }
    for (var m = 0u; m < MIXES; m++) {
        let found = amounts(m, first, d);
        for (var i = 0u; i < ROWS; i++) {
            let t = first + i;
            if t < step.rows {
                let here = x[t * D + d];
                y[4u * m * apart(D / 4u) + t * D + d] = here + (before[t * D + d] - here) * found[i];
            }
        }
    }
}
