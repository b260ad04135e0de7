// bias + B_i · low_i[t]: what adapters add to a row of x, in the place of a bias
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [M]
@group(0) @binding(16) var<storage, read> b: array<vec4f>;      // of each matrix [M, B_STRIDE]
@group(0) @binding(17) var<storage, read> low: array<vec4f>;    // of each matrix [T, R / 4], then [T] the columns of a row

struct AdapterOutput {
    first: u32,     // row among those of all matrices
    adapted: u32,   // whether it has adapters
    b: u32,         // where B starts, in vec4s
    low: u32,
}

fn bias_at(i: u32, t: u32) -> f32 {
    var own = OUTPUTS[0];
    for (var n = 1u; n < ADAPTED; n++) {
        if i >= OUTPUTS[n].first {
            own = OUTPUTS[n];
        }
    }
    var sum = bias[i];
    if own.adapted == 0u {
        return sum;
    }
    let columns = low[COLUMNS_AT + t];
    let row = own.b + (i - own.first) * B_STRIDE;
    for (var c = u32(columns.x); c < min(u32(columns.y), COLUMN_FOURS); c++) {
        sum += dot(b[row + c], low[own.low + t * COLUMN_FOURS + c]);
    }
    return sum;
}
