// Every head is an expert of all rows: a tile is TB rows of one head. A choice is t * E + h.
// needs moe/tiles: Tile, tile_here
fn tile_at(n: u32, _block: u32, _lane: u32) -> Tile {
    let first = n / E * TB;
    var found = Tile();
    if first < step.rows {
        found = tile_here(n % E, n % E * step.bucket + first, min(TB, step.rows - first));
    }
    return found;
}

fn choice_at(place: u32) -> u32 { return place % step.bucket * E + place / step.bucket; }
