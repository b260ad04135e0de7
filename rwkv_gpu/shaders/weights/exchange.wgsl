// Exchanges the bits of each block of a plane in place, as `gguf/planes.py` does.      one lane per block
@group(0) @binding(0) var<storage, read> job: array<u32>;  // first word, blocks, words of a block, pairs, order, pairs
@group(0) @binding(1) var<storage, read_write> plane: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) lane: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let block = lane.x + lane.y * groups.x * 64u;
    if block >= job[1] {
        return;
    }
    let count = job[2];
    let first = job[0] + block * count;
    var words: array<u32, 32>;
    for (var i = 0u; i < count; i++) {
        words[i] = plane[first + i];
    }
    for (var n = 0u; n < job[3]; n++) {
        let pair = 4u + count + 4u * n;    // word, word, shift, mask
        let moved = ((words[job[pair]] >> job[pair + 2u]) ^ words[job[pair + 1u]]) & job[pair + 3u];
        words[job[pair + 1u]] ^= moved;
        words[job[pair]] ^= moved << job[pair + 2u];
    }
    for (var i = 0u; i < count; i++) {
        plane[first + i] = words[job[4u + i]];
    }
}
