// bias + B_i · low_i[t]: the output of adapters for a row, used in place of a bias
// needs adapters/outputs: output_of
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [M]
@group(0) @binding(16) var<storage, read> b: array<vec2u>;      // four float16 each: of each matrix [M, B_STRIDE]
@group(0) @binding(17) var<storage, read> low: array<vec4f>;    // [T, R / 4] of each matrix, then [T] ranges of nonzero columns

const AHEAD = 4u;   // vec4s of columns that are loaded at once: as many as an adapter of rank 16 has

fn bias_at(i: u32, t: u32) -> f32 {
    let own = output_of(i);
    return bias[i] + next_sum(own, i, t, u32(low[COLUMNS_AT + t].x));
}

// The sum over columns beyond the first AHEAD vec4s of a row. Early loads cover only those first ones.
fn bias_rest(i: u32, t: u32) -> f32 {
    let own = output_of(i);
    let columns = low[COLUMNS_AT + t];
    var sum = 0.0;
    for (var c = u32(columns.x) + AHEAD; c < min(u32(columns.y), COLUMN_FOURS); c += AHEAD) {
        sum += next_sum(own, i, t, c);
    }
    return sum;
}

// The sum over AHEAD vec4s of columns from a first one on, without a branch, so that all loads are issued at once.
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
