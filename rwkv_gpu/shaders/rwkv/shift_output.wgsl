// Parts that write mixed rows.

//# floats: Mixed rows are written as floats only.
const ROUNDS = false;

fn begin(_most: f32, _t: u32, _lane: u32) {}

fn put(_xx: vec4f, _shift: vec4f, _t: u32, _d: u32) {}

//# quantise
// Mixed rows are also written as integers, if row m starts at one of STARTS. Each is a separate call: loops with shuffles are not unrolled.
// needs lib/store_quantised: store_quantised
@group(0) @binding(9) var<storage, read_write> quantised: array<u32>;

const ABSENT = 0xffffffffu;
const ROUNDS = false;

const_assert D % 32u == 0u;
const_assert WG % 8u == 0u;
const_assert MIXES <= 6u;

fn begin(_most: f32, _t: u32, _lane: u32) {}

fn put(xx: vec4f, shift: vec4f, t: u32, d: u32) {
    put_one(xx, shift, STARTS[0], 0u, t, d);
    put_one(xx, shift, STARTS[1], 1u, t, d);
    put_one(xx, shift, STARTS[2], 2u, t, d);
    put_one(xx, shift, STARTS[3], 3u, t, d);
    put_one(xx, shift, STARTS[4], 4u, t, d);
    put_one(xx, shift, STARTS[5], 5u, t, d);
}

fn put_one(xx: vec4f, shift: vec4f, start: u32, m: u32, t: u32, d: u32) {
    if start != ABSENT {
        store_quantised(xx + shift * mix[m * D4 + d], start, t, d, D / 32u, 1.0, true);
    }
}

//# round: Mixed rows are also written as float16, if row m starts at one of STARTS, with one power of two per row.
// needs lanes: reduce_max
// needs lib/matrix_units/rounded: exponent_of, halves_of, halves_of_exponent, place_of_four, place_of_exponent
@group(0) @binding(9) var<storage, read_write> rounded: array<vec2u>;

const ABSENT = 0xffffffffu;
const ROUNDS = true;

const_assert D % 64u == 0u;

var<private> exponent: i32;

fn begin(most: f32, t: u32, lane: u32) {
    exponent = exponent_of(reduce_max(most, lane));
    if lane == 0u {
        for (var m = 0u; m < MIXES; m++) {
            if STARTS[m] != ABSENT {
                rounded[STARTS[m] + place_of_exponent(t, D4)] = halves_of_exponent(exponent);
            }
        }
    }
}

fn put(xx: vec4f, shift: vec4f, t: u32, d: u32) {
    for (var m = 0u; m < MIXES; m++) {
        if STARTS[m] != ABSENT {
            let values = (xx + shift * mix[m * D4 + d]) * ldexp(1.0, -exponent);
            rounded[STARTS[m] + place_of_four(t, d, D4)] = halves_of(values);
        }
    }
}
