// Staging of x by a workgroup, STAGED runs at a time.
// needs kernel: start_of; norm: gained; rows: x4
const FOURS = RUN / 4u;

const_assert STAGED % LANES_PER_ROW == 0u;

var<workgroup> staged: array<vec4f, TB * STAGED * (FOURS + 1u)>;        // a gap after each run, so that lanes read different banks

fn place(t: u32, r: u32) -> u32 { return (t * STAGED + r) * (FOURS + 1u); }

// Stages a row of x from run `base` on. Returns the lane's part of the sum of squares.
fn stage(t: u32, start: u32, base: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var e = lane; e < min(STAGED, ALL - base) * FOURS; e += WG) {
        let at = start_of(start, base + e / FOURS);
        let k = at.y * RUN + e % FOURS * 4u;
        let values = x4(at.x, k, K);
        if NORMED {
            squares += dot(values, values);
        }
        staged[place(t, e / FOURS) + e % FOURS] = gained(values, min(k, K - 4u));
    }
    return squares;
}
