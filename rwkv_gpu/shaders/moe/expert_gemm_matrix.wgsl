// y[n, m] = result(W_e[m, :] · x[n, :])      a workgroup for R rows m and TB choices n of one expert, on matrix units
// needs choices: choice_at, tile_at
// needs fragments of a subgroup: multiply
// needs lib/matrix_units/tile: padded4, scale_at
// needs moe/matrices: row_runs
// needs moe/write: write
const PER_OUT = MATRICES;
const LANES = 1u;       // that have rows to themselves

var<private> tile: Tile;
var<private> m0: u32;

fn run(group: u32, lane: u32) {
    tile = tile_at(group / BLOCKS, group % BLOCKS, lane);
    m0 = group % BLOCKS * OUTS;
    if lane == 0u {
        bounds = vec4u(0u, select((K + COLUMNS - 1u) / COLUMNS, 0u, tile.count == 0u), 0u, 0u);
    }
    multiply(lane);
}

fn runs_of_row() -> u32 { return RUNS; }

fn w_run(row: u32, run: u32) -> u32 { return row_runs(tile.expert, m0, row) + run; }

fn x_width4() -> u32 { return padded4(K); }

fn x_place(row: u32, four: u32) -> u32 { return x_row(row) * padded4(K) + four; }

// The row of x for the choice at a place of the tile.
fn x_row(place: u32) -> u32 { return choice_at(tile.first + min(place, max(tile.count, 1u) - 1u)) / INPUT_USES; }

fn put(m: u32, t: u32, first: f32, second: f32) {
    let row = m0 + m / MATRICES;
    if row < M && t < tile.count {
        let scale = scale_at(ROUNDED_ROWS * padded4(K), x_row(t));
        write(tile, t, row, scale * first, scale * second);
    }
}
