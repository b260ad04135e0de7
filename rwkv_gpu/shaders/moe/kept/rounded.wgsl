// y is also written as float16: as many neighbouring choices as SIDE_BY_SIDE, such as all heads of a row, are a row there. Four
// neighbouring lanes have four columns, of which the first two write two each.
// needs lib/matrix_units/in_units: word_of_two
// needs lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // as round_rows writes it, without exponents

const_assert M * SIDE_BY_SIDE % 64u == 0u && M % 4u == 0u && R / MATRICES % 4u == 0u && WG % 4u == 0u;

fn keep(n: u32, m: u32, value: f32, there: bool) {
    let word = word_of_two(value);
    if there && m % 4u < 2u {
        let four = (n % SIDE_BY_SIDE * M + m) / 4u;
        rounded[2u * place_of_four(n / SIDE_BY_SIDE, four, M * SIDE_BY_SIDE / 4u) + m % 4u] = word;
    }
}
