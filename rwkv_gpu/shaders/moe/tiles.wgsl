// What a workgroup takes of the choices that rows made.
// Choices n = t * USED + j of one expert.
// needs choices: choice_at
struct Tile {
    expert: u32,    // of the shard
    first: u32,     // place of the first
    count: u32,     // none where there is nothing to do
}

fn tile_here(expert: u32, first: u32, count: u32) -> Tile {
    let here = expert - shard.first;    // wraps where it is before
    return Tile(here, first, select(0u, count, here < shard.experts));
}

// Where the input of the choice at a place of a tile starts; beyond its end, that of the last.
fn input_of(tile: Tile, place: u32) -> u32 {
    return input_at(tile.first + min(place, tile.count - 1u));
}

fn input_at(place: u32) -> u32 { return choice_at(place) / INPUT_USES * INPUT_STRIDE; }
