// y is float16 as well.
// needs kernel: item_place
// needs lib/matrix_units/in_units: in_units
// needs lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(10) var<storage, read_write> rounded: array<vec2u>;   // as round_rows writes it, without exponents

fn write_y(block: Block, i: u32, value: vec4f) {
    y[item_place(block, i)] = value;
    rounded[place_of_four(block.row + i / N4, block.head * N4 + i % N4, D4)] = halves_of(in_units(value));
}
