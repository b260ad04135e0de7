// What blocks have found of a row is joined by the workgroup that is done last: none waits for another.
@group(0) @binding(5) @coherent var<storage, read_write> parts: array<Part>;    // [R, BLOCKS]
@group(0) @binding(6) @coherent var<storage, read_write> list: array<vec2u>;    // [R, 1 + 2 LIST]: bounds, then what may be kept
@group(0) @binding(9) var<storage, read_write> done: array<atomic<u32>>;        // [R] workgroups; again 0 at the end

var<workgroup> is_last: u32;

fn join(row: u32, draw: Draw, lane: u32) {
    workgroupBarrier();
    storageBarrier();
    if lane == 0u {
        let before = atomicAdd(&done[row], 1u);
        is_last = u32(before + 1u == BLOCKS);
        if is_last == 1u {
            atomicStore(&done[row], 0u);
        }
    }
    workgroupBarrier();
    storageBarrier();
    if is_last == 1u {
        choose(row, draw, lane);
    }
}
