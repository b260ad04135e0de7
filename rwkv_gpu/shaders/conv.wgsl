// Convolutions over the last tokens: gates and outputs.

//# gated: A row of x holds f, g and h: f · h is convolved, and the result multiplied by g.
fn x_at(t: u32, c: u32) -> f32 { return x[t * STRIDE + FIRST + c] * x[t * STRIDE + FIRST + 2u * C + c]; }
fn gated(t: u32, c: u32, v: f32) -> f32 { return v * x[t * STRIDE + FIRST + C + c]; }

//# plain: x without gates.
fn x_at(t: u32, c: u32) -> f32 { return x[t * STRIDE + FIRST + c]; }
fn gated(_t: u32, _c: u32, v: f32) -> f32 { return v; }

//# y/floats: y is written as floats only.
fn write_y(t: u32, c: u32, value: f32) { y[t * C + c] = value; }

//# y/round: y is also written as float16. Four neighbouring lanes have four channels; the first two lanes write two each.
// needs lib/matrix_units/in_units: word_of_two; lib/matrix_units/rounded: place_of_four
@group(0) @binding(7) var<storage, read_write> rounded: array<u32>;      // in the layout of round_rows, without exponents

const_assert C % 64u == 0u && WG % 4u == 0u;

fn write_y(t: u32, c: u32, value: f32) {
    y[t * C + c] = value;
    let word = word_of_two(value);
    if c % 4u < 2u {
        rounded[2u * place_of_four(t, c / 4u, C / 4u) + c % 4u] = word;
    }
}
