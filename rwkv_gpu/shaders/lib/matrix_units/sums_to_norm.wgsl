// What has become of sums, `stored` of the epilogue, is normed next: it is written as float16, too, with `gain` of the norm.
// needs lib/matrix_units/to_norm: keep_to_norm
const_assert WG % S == 0u && PER_OUT == 1u;

fn keep(m: u32, t: u32, there: bool) {
    let valid = there && t0 + t < step.rows && row0 + m < matrix.rows;
    keep_to_norm(stored, gain, t0 + t, row0 + m, matrix.rows, valid);
}
