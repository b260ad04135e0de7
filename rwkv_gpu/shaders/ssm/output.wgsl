// Parts that write y.

//# floats: y is written as floats only.
fn collect_output(_own: u32, _value: f32) {}
fn quantise_output(_row: u32, _first: u32, _lane: u32) {}

//# quantise: y is also written as integers, in steps with one row per sequence; a workgroup has whole chunks of 32 columns.
// needs lib/store_quantised: store_quantised
@group(0) @binding(7) var<storage, read_write> quantised: array<u32>;

const_assert SLICE % 32u == 0u;

var<workgroup> found: array<f32, SLICE>;

fn collect_output(own: u32, value: f32) { found[own] = value; }

fn quantise_output(row: u32, first: u32, lane: u32) {
    workgroupBarrier();
    if lane < SLICE4 {
        let values = vec4f(found[4u * lane], found[4u * lane + 1u], found[4u * lane + 2u], found[4u * lane + 3u]);
        store_quantised(values, 0u, row, first / 4u + lane, H * P / 32u, 1.0, true);
    }
}

//# round: y is also written as float16, in steps with one row per sequence.
// needs lib/matrix_units/in_units: in_units; lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(7) var<storage, read_write> rounded: array<vec2u>;    // in the layout of round_rows, without exponents

const_assert SLICE % 4u == 0u;

var<workgroup> found: array<f32, SLICE>;

fn collect_output(own: u32, value: f32) { found[own] = value; }

fn quantise_output(row: u32, first: u32, lane: u32) {
    workgroupBarrier();
    for (var n = lane; n < SLICE4; n += WG) {
        let values = vec4f(found[4u * n], found[4u * n + 1u], found[4u * n + 2u], found[4u * n + 3u]);
        rounded[place_of_four(row, first / 4u + n, H * P / 4u)] = halves_of(in_units(values));
    }
}
