// order = the choices n = (t, j) by expert; tiles = up to TB neighbours in that order, of one expert each      one
// workgroup
// The order within an expert is arbitrary (a race); every choice is computed separately, so no result depends on it.
// needs sort: choose
@group(0) @binding(2) var<storage, read_write> order: array<u32>;       // [T * USED]
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4u>;     // [tiles] expert, first place in order, count

const EACH = (E + WG - 1u) / WG;

var<workgroup> counts: array<atomic<u32>, E>;   // the number of choices of each expert; then its next free place in the order
var<workgroup> ends: array<vec2u, E>;           // the number of choices, and of tiles, of all experts up to this one

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    let choices = step.rows * USED;
    choose(lane);
    for (var e = lane; e < E; e += WG) {
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    for (var n = lane; n < choices; n += WG) {
        atomicAdd(&counts[expert_of(n)], 1u);
    }
    workgroupBarrier();
    for (var e = lane; e < E; e += WG) {
        let count = atomicLoad(&counts[e]);
        ends[e] = vec2u(count, tiles_of(count));
    }
    workgroupBarrier();
    var sums: array<vec2u, EACH>;
    for (var by = 1u; by < E; by *= 2u) {
        for (var i = 0u; i < EACH; i++) {
            let e = min(i * WG + lane, E - 1u);
            sums[i] = ends[e] + select(vec2u(), ends[e - min(by, e)], e >= by);
        }
        workgroupBarrier();
        for (var i = 0u; i < EACH; i++) {
            if i * WG + lane < E {
                ends[i * WG + lane] = sums[i];
            }
        }
        workgroupBarrier();
    }
    for (var e = lane; e < E; e += WG) {
        let count = atomicLoad(&counts[e]);
        let first = ends[e].x - count;
        var tile = ends[e].y - tiles_of(count);
        for (var at = 0u; at < count; at += TB) {
            tiles[tile] = vec4u(e, first + at, min(TB, count - at), 0u);
            tile++;
        }
        atomicStore(&counts[e], first);
    }
    workgroupBarrier();
    for (var n = lane; n < choices; n += WG) {
        order[atomicAdd(&counts[expert_of(n)], 1u)] = n;
    }
    for (var tile = ends[E - 1u].y + lane; tile < arrayLength(&tiles); tile += WG) {
        tiles[tile] = vec4u();
    }
}

fn expert_of(n: u32) -> u32 { return min(experts[n], E - 1u); }

fn tiles_of(count: u32) -> u32 { return (count + TB - 1u) / TB; }
