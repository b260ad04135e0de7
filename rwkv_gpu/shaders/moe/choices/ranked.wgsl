// Every choice is a tile, of an expert that each subgroup finds by itself. The first workgroup of a row tells all of them to
// those who come later.
// needs moe/ranking: rank
// needs moe/tiles: Tile, tile_here
const_assert USED <= WG;

fn tile_at(n: u32, block: u32, lane: u32) -> Tile {
    if n >= step.rows * USED {
        return Tile();
    }
    let writes = block == 0u && n % USED == 0u;
    let expert = rank(n / USED, n % USED, select(n % USED + 1u, USED, writes), writes, lane);
    return tile_here(expert, n, 1u);
}

fn choice_at(place: u32) -> u32 { return place; }
