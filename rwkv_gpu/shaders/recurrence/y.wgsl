// Parts that write y.

//# floats: y is written as floats only.
// needs kernel: item_place
fn write_y(block: Block, i: u32, value: vec4f) { y[item_place(block, i)] = value; }

//# quantise: y is also written as integers, in steps with one row per sequence; heads are whole chunks of 32 columns.
// needs kernel: item_place; lib/store_quantised: store_quantised
@group(0) @binding(10) var<storage, read_write> quantised: array<u32>;

const_assert N % 32u == 0u;

fn write_y(block: Block, i: u32, value: vec4f) {
    y[item_place(block, i)] = value;
    store_quantised(value, 0u, block.row + i / N4, block.head * N4 + i % N4, D4 / 8u, 1.0, true);
}

//# round: y is also written as float16.
// needs kernel: item_place; lib/matrix_units/in_units: in_units; lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(10) var<storage, read_write> rounded: array<vec2u>;   // in the layout of round_rows, without exponents

fn write_y(block: Block, i: u32, value: vec4f) {
    y[item_place(block, i)] = value;
    rounded[place_of_four(block.row + i / N4, block.head * N4 + i % N4, D4)] = halves_of(in_units(value));
}
