// The answer is also float16.
// needs lib/matrix_units/in_units: in_units
// needs lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(13) var<storage, read_write> rounded: array<vec2u>;   // as round_rows writes it, without exponents

fn answer(i: u32, value: vec4f) {
    y[i] = value;
    rounded[place_of_four(i / (H * N4), i % (H * N4), H * N4)] = halves_of(in_units(value));
}
