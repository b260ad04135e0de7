// Entry: workgroups of WG lanes that share nothing.
// needs kernel: run
// needs lib/step: flat
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    run(flat(group, groups), lane);
}
