// W | B and x | low: what adapters add are further columns, which are multiplied first, while those of W are on their way
//
// 32 columns at a time for each of the subgroups that share out columns: of B in their tiles of W, of low where x is staged
// next. Where two matrices alternate, these are 16 of each, and a row of B has zeros for those of the other. low is in
// units of x times LOW_SCALE, as `adapters/down` writes it.
// needs adapters/outputs: output_of
// needs lib/matrix_units/halves: halves
// needs linear/line_gemm: x_tile_of
@group(0) @binding(16) var<storage, read> b: array<vec4u>;      // eight float16 each: of each matrix [M, B_STRIDE]
@group(0) @binding(17) var<storage, read> low: array<vec4u>;    // of each matrix [T, B_STRIDE]

const EIGHTS = 4u / PER_OUT;                // of a row of B in a step
const ADAPTER_STEPS = ((B_STRIDE + EIGHTS - 1u) / EIGHTS + ALONG_K - 1u) / ALONG_K;
const B_EIGHTS = FM * S * EIGHTS;           // of a subgroup
const B_LOADS = (B_EIGHTS + SUBGROUP - 1u) / SUBGROUP;
const LOW_EIGHTS = ALONG_K * TB * 4u;
const LOW_LOADS = (LOW_EIGHTS + WG - 1u) / WG;
const B_SCALE = W_SCALE * LOW_SCALE;

struct AdapterColumns {
    b: array<vec4u, B_LOADS>,
    low: array<vec4u, LOW_LOADS>,
}

// What a lane stages of a step; zeros beyond the last column.
fn ask_adapters(step_at: u32, lane: u32) -> AdapterColumns {
    let own = output_of(matrix.bias);
    var asked: AdapterColumns;
    for (var n = 0u; n < B_LOADS; n++) {
        let e = n * SUBGROUP + line;
        let row = min(own0 + e / EIGHTS, matrix.rows - 1u) + matrix.bias - own.first;
        asked.b[n] = eight_of_b(own, row, (step_at * ALONG_K + slot) * EIGHTS + e % EIGHTS);
    }
    for (var n = 0u; n < LOW_LOADS; n++) {
        let e = n * WG + lane;
        let first = select(own.low, own.second, e % 4u / EIGHTS == 1u);
        let t = min(t0 + e / 4u % TB, step.rows - 1u);
        asked.low[n] = eight_of_low(own, first + t * B_STRIDE, (step_at * ALONG_K + e / (4u * TB)) * EIGHTS + e % EIGHTS);
    }
    return asked;
}

fn eight_of_b(own: AdapterOutput, row: u32, at: u32) -> vec4u {
    return select(vec4u(), b[own.b + row * B_STRIDE + min(at, B_STRIDE - 1u)], at < B_STRIDE && own.adapted == 1u);
}

fn eight_of_low(own: AdapterOutput, row: u32, at: u32) -> vec4u {
    return select(vec4u(), low[row + min(at, B_STRIDE - 1u)], at < B_STRIDE && own.adapted == 1u);
}

fn stage_adapters(asked: AdapterColumns, lane: u32) {
    var columns = asked;
    workgroupBarrier();                     // until the step before has been read
    for (var n = 0u; n < B_LOADS; n++) {
        let e = n * SUBGROUP + line;
        let r = e / EIGHTS;
        let to = own_tile + r * STRIDE + 2u * (e % EIGHTS);
        if B_EIGHTS % SUBGROUP == 0u || e < B_EIGHTS {
            put_eight_of_b(to + r % PER_OUT * 4u, columns.b[n]);
            if PER_OUT == 2u {
                put_eight_of_b(to + (1u - r % PER_OUT) * 4u, vec4u());
            }
        }
    }
    for (var n = 0u; n < LOW_LOADS; n++) {
        let e = n * WG + lane;
        if LOW_EIGHTS % WG == 0u || e < LOW_EIGHTS {
            let to = x_tile_of(e / (4u * TB)) + e / 4u % TB * X_STRIDE + 2u * (e % 4u);
            x_tile[to] = halves(columns.low[n].xy);
            x_tile[to + 1u] = halves(columns.low[n].zw);
        }
    }
    workgroupBarrier();
}

fn put_eight_of_b(at: u32, words: vec4u) {
    w_tile[at] = halves(words.xy) * f16(B_SCALE);
    w_tile[at + 1u] = halves(words.zw) * f16(B_SCALE);
}
