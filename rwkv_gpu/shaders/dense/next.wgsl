// Parts with which RMSNorm also writes the input of the next op.

//# none: The normed row is not rounded.
fn look_at(_value: f32, _d: u32) {}

fn round_row(_t: u32, _lane: u32) {}

//# round
// The normed row, with an optional residual, is normed again by its reader. It is also written as float16,
// as by round_rows.
// needs lanes: reduce_add, reduce_max
// needs lib/matrix_units/rounded: exponent_of, halves_of, halves_of_exponent, place_of_four, place_of_exponent
@group(0) @binding(6) var<storage, read_write> rounded: array<vec2u>;
@group(0) @binding(7) var<storage, read> next_gain: array<vec4f>;        // [D / 4]

const_assert D % 64u == 0u;

var<private> most: f32;         // the largest value of a lane, times the gain
var<private> squares: f32;

fn look_at(value: f32, d: u32) {
    most = max(most, abs(value * next_gain[d / 4u][d % 4u]));
    squares += value * value;
}

// Called after the last element of a row.
fn round_row(t: u32, lane: u32) {
    storageBarrier();
    let norm = inverseSqrt(reduce_add(squares, lane) / f32(D) + NEXT_EPS);
    let exponent = exponent_of(reduce_max(most, lane) * norm);
    let scale = norm * ldexp(1.0, -exponent);
    for (var e = lane; e < D / 4u; e += WG) {
        let at = t * D + 4u * e;
        let values = vec4f(y[at], y[at + 1u], y[at + 2u], y[at + 3u]) * next_gain[e] * scale;
        rounded[place_of_four(t, e, D / 4u)] = halves_of(values);
    }
    if lane == 0u {
        rounded[place_of_exponent(t, D / 4u)] = halves_of_exponent(exponent);
    }
}
