// Two sums over the head of each token of a block: lanes leave a part for each vec4, then one lane adds those of a token.
var<workgroup> sums: array<f32, ITEMS>;
var<workgroup> squares: array<f32, ITEMS>;

fn token_sum(token: u32) -> f32 {
    var sum = 0.0;
    for (var i = token * N4; i < (token + 1u) * N4; i += 4u) {
        sum += (sums[i] + sums[i + 1u]) + (sums[i + 2u] + sums[i + 3u]);
    }
    return sum;
}

fn token_sum_of_squares(token: u32) -> f32 {
    var sum = 0.0;
    for (var i = token * N4; i < (token + 1u) * N4; i += 4u) {
        sum += (squares[i] + squares[i + 1u]) + (squares[i + 2u] + squares[i + 3u]);
    }
    return sum;
}
