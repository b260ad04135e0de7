// Every choice is a tile, of an expert that each workgroup finds by itself. The first workgroup of a row tells all of them to
// those who come later.
//
// As few lanes as can tell of all find it, for all: every subgroup for itself would get in the others' way.
// needs moe/ranking: rank
// needs moe/tiles: Tile, tile_here
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
