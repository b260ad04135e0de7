// Tiles of choices that were sorted by expert.
// needs moe/tiles: Tile, tile_here
@group(0) @binding(4) var<storage, read> order: array<u32>;     // [T * USED]
@group(0) @binding(5) var<storage, read> tiles: array<vec4u>;   // [tiles] expert, first place in order, count

fn tile_at(n: u32, _block: u32, _lane: u32) -> Tile {
    var found = Tile();
    if n < arrayLength(&tiles) {
        let tile = tiles[n];
        found = tile_here(tile.x, tile.y, tile.z);
    }
    return found;
}

fn choice_at(place: u32) -> u32 { return order[place]; }
