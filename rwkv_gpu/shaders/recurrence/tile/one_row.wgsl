// A lane holds tiles of one row of S.
const ROWS = 1u;
alias Rows = f32;
alias Tile = vec4f;                 // by column

fn times(tile: Tile, x: vec4f) -> Rows { return dot(tile, x); }

fn next(tile: Tile, w: vec4f, k: vec4f, ka: vec4f, v: Rows, removed: Rows) -> Tile {
    return fma(tile, w, v * k - removed * ka);
}

// S a token on, without removal.
fn grow(tile: Tile, w: vec4f, k: vec4f, v: Rows) -> Tile { return fma(tile, w, v * k); }

fn load_tile(place: u32) -> Tile { return state[place]; }
fn store_tile(place: u32, tile: Tile) { state[place] = tile; }

fn load_v(i: u32) -> Rows { return block_v[i / 4u][i % 4u]; }
fn store_y(i: u32, out: Rows) { block_y[i] = out; }
