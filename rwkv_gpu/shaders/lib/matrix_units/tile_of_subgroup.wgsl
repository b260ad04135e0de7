// Each subgroup has a tile of W, with 32 columns; those that share out columns have an x each.
// needs linear/line_gemm: x_tile_of
const TILES = ALONG_K;
const COLUMNS_OF_TILE = 32u;
const ROWS_OF_TILE = FM * S;
const LANES_OF_TILE = SUBGROUP;

fn tile_of() -> u32 { return slot; }
fn lane_of_tile(_lane: u32) -> u32 { return line; }
fn first_row_of_tile() -> u32 { return own0; }
fn place_in_w(r: u32, four: u32) -> u32 { return own_tile + r * STRIDE + four; }
fn place_in_x(tile: u32, t: u32, four: u32) -> u32 { return x_tile_of(tile) + t * X_STRIDE + four; }
