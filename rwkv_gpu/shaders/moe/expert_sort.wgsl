// order = the choices n = (t, j) by expert; tiles = up to TB neighbours there of one expert each      one workgroup
// The order within an expert is that of a race: every choice is computed by itself, so no result depends on it.
@group(0) @binding(1) var<storage, read> experts: array<u32>;           // [T * USED]
@group(0) @binding(2) var<storage, read_write> order: array<u32>;       // [T * USED]
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4u>;     // [tiles] expert, first place in order, count

var<workgroup> counts: array<atomic<u32>, E>;
var<workgroup> places: array<atomic<u32>, E>;   // the next free one in order
var<workgroup> tile_total: u32;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    let choices = step.rows * USED;
    for (var e = lane; e < E; e += WG) {
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    for (var n = lane; n < choices; n += WG) {
        atomicAdd(&counts[expert_of(n)], 1u);
    }
    workgroupBarrier();
    for (var e = lane; e < E; e += WG) {
        var first = 0u;
        var tile = 0u;
        for (var before = 0u; before < e; before++) {
            let count = atomicLoad(&counts[before]);
            first += count;
            tile += tiles_of(count);
        }
        let count = atomicLoad(&counts[e]);
        atomicStore(&places[e], first);
        for (var at = 0u; at < count; at += TB) {
            tiles[tile] = vec4u(e, first + at, min(TB, count - at), 0u);
            tile++;
        }
        if e == E - 1u {
            tile_total = tile;
        }
    }
    workgroupBarrier();
    for (var n = lane; n < choices; n += WG) {
        order[atomicAdd(&places[expert_of(n)], 1u)] = n;
    }
    for (var tile = tile_total + lane; tile < arrayLength(&tiles); tile += WG) {
        tiles[tile] = vec4u();
    }
}

fn expert_of(n: u32) -> u32 { return min(experts[n], E - 1u); }

fn tiles_of(count: u32) -> u32 { return (count + TB - 1u) / TB; }
