// What becomes of sums is normed next: it is written as float16, too.
// needs lib/matrix_units/to_norm: keep_to_norm
@group(0) @binding(13) var<storage, read> next_gain: array<f32>;    // [M]

const_assert M % 64u == 0u && WG % S == 0u;

fn keep(i: u32, value: f32) { keep_to_norm(value, next_gain[i % M], i / M, i % M, M, i < step.rows * M); }
