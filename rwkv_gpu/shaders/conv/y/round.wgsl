// y is float16 as well. Four neighbouring lanes have four channels, of which the first two write two each.
// needs lib/matrix_units/in_units: word_of_two
// needs lib/matrix_units/rounded: place_of_four
@group(0) @binding(7) var<storage, read_write> rounded: array<u32>;      // as round_rows writes it, without exponents

const_assert C % 64u == 0u && WG % 4u == 0u;

fn write_y(t: u32, c: u32, value: f32) {
    y[t * C + c] = value;
    let word = word_of_two(value);
    if c % 4u < 2u {
        rounded[2u * place_of_four(t, c / 4u, C / 4u) + c % 4u] = word;
    }
}
