// bias + B_i · low_i[t]: what adapters add to a row of x, in the place of a bias
// needs adapters/outputs: output_of
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [M]
@group(0) @binding(16) var<storage, read> b: array<vec2u>;      // four float16 each: of each matrix [M, B_STRIDE]
@group(0) @binding(17) var<storage, read> low: array<vec4f>;    // of each matrix [T, R / 4], then [T] the columns of a row

const AHEAD = 4u;   // fours of columns that are asked for at once: adapters of rank 16 have as many

fn bias_at(i: u32, t: u32) -> f32 {
    let own = output_of(i);
    return bias[i] + next_sum(own, i, t, u32(low[COLUMNS_AT + t].x));
}

// What columns give beyond the first AHEAD fours that a row has. Whoever asks early asks for no more than those.
fn bias_rest(i: u32, t: u32) -> f32 {
    let own = output_of(i);
    let columns = low[COLUMNS_AT + t];
    var sum = 0.0;
    for (var c = u32(columns.x) + AHEAD; c < min(u32(columns.y), COLUMN_FOURS); c += AHEAD) {
        sum += next_sum(own, i, t, c);
    }
    return sum;
}

// AHEAD fours of columns from one on, without a branch, so that they are asked for at once.
fn next_sum(own: AdapterOutput, i: u32, t: u32, first: u32) -> f32 {
    let end = own.adapted * min(u32(low[COLUMNS_AT + t].y), COLUMN_FOURS);
    var sum = 0.0;
    for (var n = 0u; n < AHEAD; n++) {
        let c = min(first + n, COLUMN_FOURS - 1u);
        let words = b[own.b + (i - own.first) * B_STRIDE + c];
        let four = vec4f(unpack2x16float(words.x), unpack2x16float(words.y));
        let product = dot(four, low[select(own.low, own.second, i % 2u == 1u) + t * COLUMN_FOURS + c]);
        sum += select(0.0, product, first + n < end);
    }
    return sum;
}
