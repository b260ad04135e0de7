// How a workgroup reads x, STAGED runs at a time, and where the SIDE lanes that share rows put their SUMS together.
const FOURS = RUN / 4u;
const REACH = min(SIDE, SUBGROUP);

const_assert WG % SIDE == 0u;
const_assert WG % SUBGROUP == 0u;
const_assert STAGED % SIDE == 0u;

var<workgroup> staged: array<vec4f, TB * STAGED * (FOURS + 1u)>;        // a gap behind each run: lanes read different banks
var<workgroup> partial: array<f32, WG / REACH * SUMS>;
var<workgroup> partial_squares: array<f32, WG / SUBGROUP * TB>;

fn place(t: u32, r: u32) -> u32 { return (t * STAGED + r) * (FOURS + 1u); }

// Puts down a row of x from run `base` on; what the lane found its squares to sum to.
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

// Adds sum number a of a lane to those beside it.
fn lay(value: f32, a: u32, lane: u32) {
    let sum = reach_add(value, REACH);
    if lane % REACH == 0u {
        partial[lane / REACH * SUMS + a] = sum;
    }
}

fn lay_squares(value: f32, t: u32, lane: u32) {
    if NORMED {
        let sum = reach_add(value, SUBGROUP);
        if lane % SUBGROUP == 0u {
            partial_squares[lane / SUBGROUP * TB + t] = sum;
        }
    }
}

// Over all lanes that share the rows of a lane.
fn sum_of(a: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var p = 0u; p < SIDE / REACH; p++) {
        sum += partial[(lane / SIDE * (SIDE / REACH) + p) * SUMS + a];
    }
    return sum;
}

fn squares_of(t: u32) -> f32 {
    var sum = 0.0;
    if NORMED {
        for (var s = 0u; s < WG / SUBGROUP; s++) {
            sum += partial_squares[s * TB + t];
        }
    }
    return sum;
}
