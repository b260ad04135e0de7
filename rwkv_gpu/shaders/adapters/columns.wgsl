// W | B and x | low: adapters as further columns of W and of x
//
// A step has COLUMNS_OF_TILE columns for each of TILES tiles. A tile has ROWS_OF_TILE rows of W and LANES_OF_TILE
// lanes. B is staged in place of W, and low in place of x. For alternating matrices, half of these columns belong to
// each matrix, and a row of B has zeros in the half of the other. low is in units of x, divided by LOW_SCALE to fit
// float16, and B is multiplied by LOW_SCALE.
// needs adapters/outputs: output_of; lib/matrix_units/halves: halves
// needs linear/line_gemm: first_row_of_tile, lane_of_tile, place_in_w, place_in_x, tile_of
@group(0) @binding(16) var<storage, read> b: array<vec4u>;      // eight float16 each: of each matrix [M, B_STRIDE]
@group(0) @binding(17) var<storage, read> low: array<vec4f>;    // [T, COLUMN_FOURS] of each matrix

const FOURS_OF_HALF = COLUMNS_OF_TILE / (4u * ALTERNATE);
const EIGHTS_OF_HALF = FOURS_OF_HALF / 2u;
const ADAPTER_STEPS = ((COLUMN_FOURS + FOURS_OF_HALF - 1u) / FOURS_OF_HALF + TILES - 1u) / TILES;
const B_EIGHTS = ROWS_OF_TILE * EIGHTS_OF_HALF;
const B_LOADS = (B_EIGHTS + LANES_OF_TILE - 1u) / LANES_OF_TILE;
const LOW_FOURS_OF_ROW = COLUMNS_OF_TILE / 4u;
const LOW_FOURS = TILES * TB * LOW_FOURS_OF_ROW;
const LOW_LOADS = (LOW_FOURS + WG - 1u) / WG;
const B_SCALE = W_SCALE * LOW_SCALE;
const LARGEST_LOW = 65504.0;

struct AdapterColumns {
    b: array<vec4u, B_LOADS>,
    low: array<vec4f, LOW_LOADS>,
}

// The values that a lane stages per step; zeros beyond the last column.
fn ask_adapters(step_at: u32, lane: u32) -> AdapterColumns {
    let own = output_of(matrix.bias);
    let here = own.adapted == 1u && part == 0u;     // if columns are split into parts, the first part has the adapters
    var asked: AdapterColumns;
    for (var n = 0u; n < B_LOADS; n++) {
        let e = n * LANES_OF_TILE + lane_of_tile(lane);
        let row = min(first_row_of_tile() + e / EIGHTS_OF_HALF, matrix.rows - 1u) + matrix.bias - own.first;
        let at = (step_at * TILES + tile_of()) * EIGHTS_OF_HALF + e % EIGHTS_OF_HALF;
        let near = b[own.b + row * B_STRIDE + min(at, B_STRIDE - 1u)];
        asked.b[n] = select(vec4u(), near, at < B_STRIDE && here);
    }
    for (var n = 0u; n < LOW_LOADS; n++) {
        let e = n * WG + lane;
        let of_row = e % LOW_FOURS_OF_ROW;
        let t = min(t0 + e / LOW_FOURS_OF_ROW % TB, step.rows - 1u);
        let at = (step_at * TILES + e / (LOW_FOURS_OF_ROW * TB)) * FOURS_OF_HALF + of_row % FOURS_OF_HALF;
        let first = select(own.low, own.second, of_row >= FOURS_OF_HALF);
        let near = low[first + t * COLUMN_FOURS + min(at, COLUMN_FOURS - 1u)];
        asked.low[n] = select(vec4f(), near, at < COLUMN_FOURS && here);
    }
    return asked;
}

fn stage_adapters(asked: AdapterColumns, lane: u32) {
    var columns = asked;
    workgroupBarrier();                     // all lanes have read the values staged before
    for (var n = 0u; n < B_LOADS; n++) {
        let e = n * LANES_OF_TILE + lane_of_tile(lane);
        if B_EIGHTS % LANES_OF_TILE == 0u || e < B_EIGHTS {
            let r = e / EIGHTS_OF_HALF;
            let four = 2u * (e % EIGHTS_OF_HALF);
            for (var half = 0u; half < ALTERNATE; half++) {
                let words = select(vec4u(), columns.b[n], half == r % ALTERNATE);
                w_tile[place_in_w(r, half * FOURS_OF_HALF + four)] = halves(words.xy) * f16(B_SCALE);
                w_tile[place_in_w(r, half * FOURS_OF_HALF + four + 1u)] = halves(words.zw) * f16(B_SCALE);
            }
        }
    }
    for (var n = 0u; n < LOW_LOADS; n++) {
        let e = n * WG + lane;
        if LOW_FOURS % WG == 0u || e < LOW_FOURS {
            let values = clamp(columns.low[n] / LOW_SCALE, vec4f(-LARGEST_LOW), vec4f(LARGEST_LOW));
            let t = e / LOW_FOURS_OF_ROW % TB;
            x_tile[place_in_x(e / (LOW_FOURS_OF_ROW * TB), t, e % LOW_FOURS_OF_ROW)] = vec4<f16>(values);
        }
    }
    workgroupBarrier();
}
