// Prologues of matrix products: how rows of x are read, normed and mixed.

//# convolution: The only row x of a step, convolved over the rows before it while it is read:
// g · sum over i of w[c, i] · before[i, c], where x holds f, g and h, and the newest row before is f · h
//
// Every workgroup reads the state, and the first workgroup writes the new one. This is safe, as a step never writes the
// state that it reads.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;           // f, g and h, [C / 4] each
@group(0) @binding(9) var<storage, read> taps: array<vec4f>;        // [C, TAPS] in fours
@group(0) @binding(10) var<storage, read_write> past: array<vec4f>; // [states, PAST, C / 4], the oldest first
@group(0) @binding(11) var<uniform> segment: Segment;

const READS_X_EARLY = true;
const TAPS = PAST + 1u;
const C4 = C / 4u;

const_assert C % 4u == 0u;

fn x4(_start: u32, k: u32, _width: u32) -> vec4f {
    let c = k / 4u;
    var own: array<f32, 4u * TAPS>;     // the weights of four channels, channel by channel
    for (var i = 0u; i < TAPS; i++) {
        let four = taps[c * TAPS + i];
        own[4u * i] = four.x;
        own[4u * i + 1u] = four.y;
        own[4u * i + 2u] = four.z;
        own[4u * i + 3u] = four.w;
    }
    var sum = vec4f();
    for (var i = 0u; i < TAPS; i++) {
        sum += row_of(i, c) * vec4f(own[i], own[TAPS + i], own[2u * TAPS + i], own[3u * TAPS + i]);
    }
    return x[C4 + c] * sum;
}

// The row of a tap, oldest first; the last is the row of x.
fn row_of(i: u32, c: u32) -> vec4f {
    if i == PAST {
        return x[c] * x[2u * C4 + c];
    }
    return select(past[(segment.source * PAST + i) * C4 + c], vec4f(), segment.start == 0u);
}

// Writes the new state.
fn find_statistics(lane: u32) {
    if is_first_workgroup {
        for (var c = lane; c < C4; c += WG) {
            for (var i = 0u; i < PAST; i++) {
                past[(segment.written * PAST + i) * C4 + c] = row_of(i + 1u, c);
            }
        }
    }
}

//# joined_rows: One row of x followed by one of z; x4 returns columns k .. k + 4 of both.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [K / 4], the input of the first matrix
@group(0) @binding(18) var<storage, read> z: array<vec4f>;      // the input of the second matrix

fn x4(_start: u32, k: u32, _width: u32) -> vec4f {
    if k < 32u * SEAM {
        return x[(table.matrix[0].x + k) / 4u];
    }
    return z[(table.matrix[1].x + k) / 4u - 8u * SEAM];
}

//# layer_norm: The only row x of a step, normed while it is read.
// needs linear/prologue/single_row: normed_at
fn x4(_start: u32, k: u32, _width: u32) -> vec4f { return normed_at(k / 4u); }

//# no_norm: x without a norm.
const NORMED = false;

fn gained(values: vec4f, _k: u32) -> vec4f { return values; }
fn root(_squares: f32, _width: u32) -> f32 { return 1.0; }

//# no_normed_row
fn store_normed(_d: u32, _value: vec4f) {}

//# plain: x needs no statistics before it is read.
const READS_X_EARLY = true;

fn find_statistics(_lane: u32) {}

//# rms_norm
// x / sqrt(mean(x²) + EPS) * gain, in the prologue of a product: x is multiplied by the gain, sums by the root.
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [K / 4]

const NORMED = true;

fn gained(values: vec4f, k: u32) -> vec4f { return values * gain[k / 4u]; }
fn root(squares: f32, width: u32) -> f32 { return inverseSqrt(squares / f32(width) + EPS); }

//# single_row: The only row x of a step, and its norm, layer_norm(x), once its mean and deviation are known.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]

const READS_X_EARLY = false;                    // Statistics must be known before x is read.
const D4 = D / 4u;

const_assert D % 4u == 0u;

var<private> centre: vec2f;             // the mean of x, and the inverse of its deviation

fn normed_at(d: u32) -> vec4f { return (x[d] - centre.x) * centre.y * gain[d] + shift[d]; }

//# store_normed_row
// The first workgroup stores the normed row, which a later product copies to the state. Lanes without a vec4 of their
// own read the first one again, which only lane 0 writes.
@group(0) @binding(13) var<storage, read_write> normed_row: array<vec4f>;   // [D / 4]

fn store_normed(d: u32, value: vec4f) {
    if is_first_workgroup && (d % D4 != 0u || own_lane == 0u) {
        normed_row[d] = value;
    }
}

//# token_shift: The only row x of a step, normed and mixed with the row before it while it is read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous as the state holds it, or 0 for a fresh sequence
// needs linear/prologue/single_row: normed_at; normed row: store_normed
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> shift_state: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<uniform> segment: Segment;

fn x4(start: u32, k: u32, _width: u32) -> vec4f {
    let d = k / 4u;
    let here = normed_at(d);
    store_normed(d, here);
    return here + (select(shift_state[segment.source * D4 + d], vec4f(), segment.start == 0u) - here) * mix[start / 4u + d];
}

//# token_shift_rows
// ROWS rows x of different sequences, each normed and mixed with the row before it while it is read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous as the state holds it, or 0 for a fresh sequence
// needs linear/row_statistics/merge: merged_statistics, total; normed row: store_normed; row statistics: count_of
// needs sum: group_sum
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [ROWS, D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> shift_state: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<storage, read> segment: array<Segment>;  // [ROWS]

const READS_X_EARLY = false;                    // Statistics must be known before x is read.
const D4 = D / 4u;

const_assert D % 4u == 0u;

var<private> centre: array<vec2f, TB>;      // for each row of a workgroup, its mean and the inverse of its deviation

// `start` selects the row of `mix` and the row of x, as if mixed rows lay in memory.
fn x4(start: u32, k: u32, _width: u32) -> vec4f {
    let d = k / 4u;
    let t = start / D % ROWS;
    var own = centre[0];
    for (var other = 1u; other < TB; other++) {
        own = select(own, centre[other], t == first_row + other);
    }
    let here = (x[t * D4 + d] - own.x) * own.y * gain[d] + shift[d];
    store_normed(t * D4 + d, here);
    return here + (select(shift_state[segment[t].source * D4 + d], vec4f(), segment[t].start == 0u) - here) * mix[start / (D * ROWS) * D4 + d];
}

// Finds mean and deviation of a workgroup's rows: by subgroup, then over all.
fn find_statistics(lane: u32) {
    let own_subgroup = lane / SUBGROUP;
    var means: array<f32, TB>;
    for (var own = 0u; own < TB; own++) {
        let t = min(first_row + own, ROWS - 1u);
        var sum = 0.0;
        for (var d = lane; d < D4; d += WG) {
            sum += total(x[t * D4 + d]);
        }
        means[own] = group_sum(sum, SUBGROUP) / max(1.0, count_of(own_subgroup));
    }
    for (var own = 0u; own < TB; own++) {
        let t = min(first_row + own, ROWS - 1u);
        var squares = 0.0;
        for (var d = lane; d < D4; d += WG) {
            let here = x[t * D4 + d] - means[own];
            squares += dot(here, here);
        }
        squares = group_sum(squares, SUBGROUP);
        if lane % SUBGROUP == 0u {
            partial_moments[own * SUBGROUPS + own_subgroup] = vec2f(means[own], squares);
        }
    }
    workgroupBarrier();
    for (var own = 0u; own < TB; own++) {
        centre[own] = merged_statistics(own, lane);
    }
}
