// What blocks have found of a row is joined by the workgroup that is done last: none waits for another.
@group(0) @binding(5) @coherent var<storage, read_write> parts: array<Part>;    // [R, BLOCKS]
@group(0) @binding(9) var<storage, read_write> done: array<atomic<u32>>;        // [R] workgroups; again 0 at the end

var<workgroup> last: u32;

fn is_last(row: u32, lane: u32) -> bool {
    workgroupBarrier();
    storageBarrier();
    if lane == 0u {
        let before = atomicAdd(&done[row], 1u);
        last = u32(before + 1u == BLOCKS);
        if last == 1u {
            atomicStore(&done[row], 0u);
        }
    }
    workgroupBarrier();
    storageBarrier();
    return last == 1u;
}
