// size[0] = the subgroup size of this kernel      one workgroup
@group(0) @binding(0) var<storage, read_write> size: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(subgroup_size) subgroup_size: u32) {
    size[0] = subgroup_size;
}
