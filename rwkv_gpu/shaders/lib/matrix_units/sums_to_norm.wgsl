// What has become of sums, `stored` of the epilogue, is also written as float16, times `gain` of the norm that comes next, and
// the sum of squares of each S columns. Four neighbouring lanes have four columns, of which the first two write two each.
// needs lib/matrix_units/in_units: word_of_two
// needs lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // as round_rows writes it, with squares for exponents

const_assert S % 4u == 0u && WG % S == 0u && PER_OUT == 1u;

fn keep(m: u32, t: u32, there: bool) {
    let valid = there && t0 + t < step.rows && row0 + m < matrix.rows;
    let word = word_of_two(stored * gain);
    var squares = stored * stored;
    for (var d = 1u; d < S; d *= 2u) {
        squares += subgroupShuffleXor(squares, d);
    }
    let column = row0 + m;
    if valid && column % 4u < 2u {
        rounded[2u * place_of_four(t0 + t, column / 4u, matrix.rows / 4u) + column % 4u] = word;
    }
    if valid && m % S == 0u {
        rounded[matrix.rows / 2u * X_ROWS + column / S * X_ROWS + t0 + t] = bitcast<u32>(squares);
    }
}
