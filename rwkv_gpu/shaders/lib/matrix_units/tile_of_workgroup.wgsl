// All subgroups of a workgroup have one tile of W, and one of x.
// needs lib/matrix_units/tile: place_of
const TILES = 1u;
const COLUMNS_OF_TILE = COLUMNS;
const ROWS_OF_TILE = R;
const LANES_OF_TILE = WG;

fn tile_of() -> u32 { return 0u; }
fn lane_of_tile(lane: u32) -> u32 { return lane; }
fn first_row_of_tile() -> u32 { return row0; }
fn place_in_w(r: u32, four: u32) -> u32 { return place_of(R, r, four); }
fn place_in_x(_tile: u32, t: u32, four: u32) -> u32 { return place_of(TB, t, four); }
