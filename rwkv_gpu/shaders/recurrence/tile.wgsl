// The rows of the state held by a lane.

//# four_rows: A lane holds tiles of four rows of S, so that a load of r, w, k, κ or κ a serves four.
// needs state: load_state, store_state
const ROWS = 4u;
alias Rows = vec4f;
alias Tile = mat4x4f;               // [column][row]

fn times(tile: Tile, x: vec4f) -> Rows { return tile * x; }

fn next(tile: Tile, w: vec4f, k: vec4f, ka: vec4f, v: Rows, removed: Rows) -> Tile {
    return Tile(
        fma(tile[0], vec4f(w.x), v * k.x - removed * ka.x),
        fma(tile[1], vec4f(w.y), v * k.y - removed * ka.y),
        fma(tile[2], vec4f(w.z), v * k.z - removed * ka.z),
        fma(tile[3], vec4f(w.w), v * k.w - removed * ka.w),
    );
}

// Advances S by a token, without removal.
fn grow(tile: Tile, w: vec4f, k: vec4f, v: Rows) -> Tile {
    return Tile(
        fma(tile[0], vec4f(w.x), v * k.x),
        fma(tile[1], vec4f(w.y), v * k.y),
        fma(tile[2], vec4f(w.z), v * k.z),
        fma(tile[3], vec4f(w.w), v * k.w),
    );
}

fn load_tile(place: u32) -> Tile {
    return transpose(
        Tile(load_state(place), load_state(place + N4), load_state(place + 2u * N4), load_state(place + 3u * N4))
    );
}

fn store_tile(place: u32, tile: Tile) {
    let rows = transpose(tile);
    store_state(place, rows[0]);
    store_state(place + N4, rows[1]);
    store_state(place + 2u * N4, rows[2]);
    store_state(place + 3u * N4, rows[3]);
}

fn load_v(i: u32) -> Rows { return block_v[i / 4u]; }

fn store_y(i: u32, out: Rows) {
    block_y[i] = out.x;
    block_y[i + 1u] = out.y;
    block_y[i + 2u] = out.z;
    block_y[i + 3u] = out.w;
}

//# one_row: A lane holds tiles of one row of S.
// needs state: load_state, store_state
const ROWS = 1u;
alias Rows = f32;
alias Tile = vec4f;                 // one number per column

fn times(tile: Tile, x: vec4f) -> Rows { return dot(tile, x); }

fn next(tile: Tile, w: vec4f, k: vec4f, ka: vec4f, v: Rows, removed: Rows) -> Tile {
    return fma(tile, w, v * k - removed * ka);
}

// Advances S by a token, without removal.
fn grow(tile: Tile, w: vec4f, k: vec4f, v: Rows) -> Tile { return fma(tile, w, v * k); }

fn load_tile(place: u32) -> Tile { return load_state(place); }
fn store_tile(place: u32, tile: Tile) { store_state(place, tile); }

fn load_v(i: u32) -> Rows { return block_v[i / 4u][i % 4u]; }
fn store_y(i: u32, out: Rows) { block_y[i] = out; }
