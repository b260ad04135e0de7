// Row n of y is also written as float16. Four neighbouring lanes have four columns, of which the first two write two each.
// needs lib/matrix_units/in_units: word_of_two
// needs lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // [T * USED, M / 2], as round_rows writes it, without exponents

const_assert M % 64u == 0u && R / MATRICES % 4u == 0u && WG % 4u == 0u;

fn keep(n: u32, m: u32, value: f32, there: bool) {
    let word = word_of_two(value);
    if there && m % 4u < 2u {
        rounded[2u * place_of_four(n, m / 4u, M / 4u) + m % 4u] = word;
    }
}
