// Mixed rows are float16 as well, where those of m start at one of STARTS: all of a row by one power of two.
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
