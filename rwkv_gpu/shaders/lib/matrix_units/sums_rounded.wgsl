// What has become of sums, `stored` of the epilogue, is also written as float16. Four neighbouring lanes have four columns,
// of which the first two write two each.
// needs lib/matrix_units/in_units: word_of_two
// needs lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // as round_rows writes it, without exponents

const_assert S % (4u * PER_OUT) == 0u && WG % 4u == 0u;

fn keep(m: u32, t: u32, there: bool) {
    let word = word_of_two(stored);
    let column = (row0 + m) / PER_OUT;
    if there && t0 + t < step.rows && row0 + m < matrix.rows && column % 4u < 2u {
        let four = place_of_four(t0 + t, column / 4u, matrix.rows / PER_OUT / 4u);
        rounded[2u * four + column % 4u] = word;
    }
}
