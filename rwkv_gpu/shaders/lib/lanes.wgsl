// Lanes without reductions, and those of one subgroup.

//# broadcast: Every lane's value to all lanes of a subgroup of 8.
fn spread(v: vec4f) -> array<vec4f, 8> {
    return array<vec4f, 8>(
        #for i in 0..8: subgroupBroadcast(v, {i}u),
    );
}

//# one_subgroup: Entry and reductions: a workgroup is a single subgroup, so no barrier is needed.
// needs kernel: run; lib/step: flat
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    run(flat(group, groups), lane);
}

fn reduce_add(v: f32, lane: u32) -> f32 { return subgroupAdd(v); }
fn reduce_max(v: f32, lane: u32) -> f32 { return subgroupMax(v); }
fn reduce_min(v: u32, lane: u32) -> u32 { return subgroupMin(v); }
fn reduce_max2(v: vec2f, lane: u32) -> vec2f { return subgroupMax(v); }
fn reduce_best(key: f32, id: u32, lane: u32) -> u32 {
    return subgroupMin(select(0xffffffffu, id, key == subgroupMax(key)));
}
fn reduce_add2(v: vec2f, lane: u32) -> vec2f { return subgroupAdd(v); }
fn reduce_add4(v: vec4f, lane: u32) -> vec4f { return subgroupAdd(v); }

//# plain: Entry: workgroups of WG lanes that share nothing.
// needs kernel: run; lib/step: flat
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    run(flat(group, groups), lane);
}
