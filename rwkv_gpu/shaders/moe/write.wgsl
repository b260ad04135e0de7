// What becomes of the sums of a choice.
// needs bias: bias_of
// needs choices: choice_at
// needs input scale: input_scale
// needs result: result
// needs sums: sum_scale
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T * USED, M]

// Row m of the choice at a place of a tile; `first` and `second` are the sums of its one or two matrices. What was written.
fn write(tile: Tile, place: u32, m: u32, first: f32, second: f32) -> f32 {
    let n = choice_at(tile.first + place);
    let expert = shard.first + tile.expert;
    let row = expert * M + m;
    let scale = input_scale(n);
    let one = fma(scale * sum_scale(0u, expert), first, bias_of(0u, row));
    let two = fma(scale * sum_scale(MATRICES - 1u, expert), second, bias_of(MATRICES - 1u, row));
    let value = result(one, two, n * M + m);
    y[n * M + m] = value;
    return value;
}
