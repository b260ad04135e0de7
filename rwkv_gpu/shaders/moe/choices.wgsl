// The expert and the rows of a workgroup.

//# each: Every choice is a tile.
// needs moe/tiles: Tile, tile_here
@group(0) @binding(4) var<storage, read> experts: array<u32>;   // [T, USED]

fn tile_at(n: u32, _block: u32, _lane: u32) -> Tile {
    var found = Tile();
    if n < step.rows * USED {
        found = tile_here(experts[n], n, 1u);
    }
    return found;
}

fn choice_at(place: u32) -> u32 { return place; }

//# heads: Every head is an expert of all rows: a tile is TB rows of one head. A choice is t * E + h.
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

//# ranked
// Every choice is a tile; each workgroup computes its expert itself. The first workgroup of a row stores all of them for
// later dispatches.
//
// As few subgroups as can hold all logits find the expert for all lanes. A search in each subgroup would slow the
// others down.
// needs moe/ranking: rank; moe/tiles: Tile, tile_here
const FINDERS = (USED + SUBGROUP - 1u) / SUBGROUP * SUBGROUP;

const_assert FINDERS <= WG;

var<workgroup> found_expert: u32;

fn tile_at(n: u32, block: u32, lane: u32) -> Tile {
    if n >= step.rows * USED {
        return Tile();
    }
    let writes = block == 0u && n % USED == 0u;
    if lane < FINDERS {
        let expert = rank(n / USED, n % USED, select(n % USED + 1u, USED, writes), writes, lane);
        if lane == 0u {
            found_expert = expert;
        }
    }
    workgroupBarrier();
    return tile_here(found_expert, n, 1u);
}

fn choice_at(place: u32) -> u32 { return place; }

//# sorted: Tiles of choices that were sorted by expert.
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
