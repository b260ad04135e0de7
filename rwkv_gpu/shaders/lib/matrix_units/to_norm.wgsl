// Rows that are normed next, as float16: times the gain of that norm, and behind them the sum of squares of each S columns.
// Four neighbouring lanes have four columns, of which the first two write two each.
// needs lib/matrix_units/in_units: word_of_two
// needs lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // as round_rows writes it, with squares for exponents

const_assert S % 4u == 0u && FRAGMENTS > 0u;

// What a lane has for column m of row t, of rows of so many.
fn keep_to_norm(value: f32, gain: f32, t: u32, m: u32, columns: u32, there: bool) {
    let word = word_of_two(value * gain);
    var squares = value * value;
    for (var d = 1u; d < S; d *= 2u) {
        squares += subgroupShuffleXor(squares, d);
    }
    if there && m % 4u < 2u {
        rounded[2u * place_of_four(t, m / 4u, columns / 4u) + m % 4u] = word;
    }
    if there && m % S == 0u {
        rounded[(columns / 2u + m / S) * FRAGMENTS * S + t] = bitcast<u32>(squares);
    }
}
