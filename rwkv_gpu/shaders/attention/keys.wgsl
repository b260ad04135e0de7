// The keys and values that a workgroup reads together.

//# chosen: Positions in the list of a row.
// needs queries: list_of
struct Tile {
    first: u32,     // the first place in the list
    segment: u32,
    head: u32,
}

fn tile_of(block: Block, head: u32, base: u32) -> Tile {
    return Tile(list_of(block.first, head) + base, block.segment, head);
}

fn key_row(tile: Tile, j: u32) -> u32 {
    let position = chosen[tile.first + j];
    return ((pages[tile.segment * MAX_PAGES + position / PAGE] * PAGE + position % PAGE) * KV + tile.head) * N8;
}

//# paged: Neighbouring positions of one page.
struct Tile {
    row: u32,       // the row of the first position
}

fn tile_of(block: Block, head: u32, base: u32) -> Tile {
    let page = pages[block.segment * MAX_PAGES + base / PAGE];
    return Tile(((page * PAGE + base % PAGE) * KV + head) * N8);
}

fn key_row(tile: Tile, j: u32) -> u32 { return tile.row + j * KV * N8; }
