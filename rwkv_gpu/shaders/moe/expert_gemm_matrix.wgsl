// y[n, m] = result(W_e[m, :] · x[n, :])      a workgroup for R rows m and up to TB choices n of one expert, on matrix units
//
// Each weight is decoded once for all of these choices. Fragments of x without choices are neither copied nor
// multiplied. So a tile may be as large as the busiest expert needs.
// needs choices: choice_at, tile_at; kept: keep; moe/matrices: row_runs; fragments: multiply; moe/write: write
// needs unit: scale_at
const LANES = 1u;       // lanes that have rows to themselves

var<private> tile: Tile;
var<private> m0: u32;

fn run(group: u32, lane: u32) {
    tile = tile_at(group / BLOCKS, group % BLOCKS, lane);
    m0 = group % BLOCKS * OUTS;
    if lane == 0u {
        live = vec4u((tile.count + S - 1u) / S);
    }
    multiply(lane);
}

fn w_run(row: u32) -> u32 { return row_runs(tile.expert, m0, row); }

// The choice at a place of the tile, and its row of x; beyond the end, the last choice.
fn choice_of(place: u32) -> u32 { return choice_at(tile.first + min(place, tile.count - 1u)); }

fn x_row(place: u32) -> u32 { return choice_of(place) / INPUT_USES; }

fn put(m: u32, t: u32, first: f32, second: f32, wanted: bool) {
    let row = m0 + m / MATRICES;
    let there = wanted && row < M && t < tile.count;
    var value = 0.0;
    if there {
        let scale = scale_at(x_row(t));
        value = write(tile, t, row, scale * first, scale * second);
    }
    keep(choice_of(t), row, value, there);
}
