// y is float16 as well, where each sequence has one row.
// needs lib/matrix_units/in_units: in_units
// needs lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(7) var<storage, read_write> rounded: array<vec2u>;    // as round_rows writes it, without exponents

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
