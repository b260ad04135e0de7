// Entry point and reductions over the WG lanes of a workgroup: within each subgroup, then over all subgroups; all lanes get the result.
// needs kernel: run; lib/step: flat
var<workgroup> shared_subgroups: array<u32, WG>;    // one value per subgroup; a subgroup may have only one lane
var<workgroup> shared_seconds: array<u32, WG>;
var<workgroup> shared_fours: array<vec4f, (WG + 3u) / 4u>;   // WebGPU subgroups have at least four lanes; WG elements would take 16 KiB
var<private> subgroup: u32;
var<private> subgroups: u32;
var<private> subgroup_lane: u32;
var<private> subgroup_lanes: u32;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) id: u32,
    @builtin(num_subgroups) count: u32,
    @builtin(subgroup_invocation_id) place: u32,
    @builtin(subgroup_size) size: u32,
) {
    subgroup = id;
    subgroups = count;
    subgroup_lane = place;
    subgroup_lanes = size;
    run(flat(group, groups), lane);
}

fn reduce_add(v: f32, lane: u32) -> f32 {
    share(bitcast<u32>(subgroupAdd(v)));
    var sum = 0.0;
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        sum += bitcast<f32>(shared_subgroups[s]);
    }
    return subgroupAdd(sum);
}

// Computes two sums with as many barriers as one.
fn reduce_add2(v: vec2f, lane: u32) -> vec2f {
    share_both(bitcast<vec2u>(subgroupAdd(v)));
    var sum = vec2f();
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        sum += vec2f(bitcast<f32>(shared_subgroups[s]), bitcast<f32>(shared_seconds[s]));
    }
    return subgroupAdd(sum);
}

// Computes four sums with as many barriers as one.
fn reduce_add4(v: vec4f, lane: u32) -> vec4f {
    let own = subgroupAdd(v);
    workgroupBarrier();
    if subgroup_lane == 0u {
        shared_fours[subgroup] = own;
    }
    workgroupBarrier();
    var sum = vec4f();
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        sum += shared_fours[s];
    }
    return subgroupAdd(sum);
}

fn reduce_max2(v: vec2f, lane: u32) -> vec2f {
    share_both(bitcast<vec2u>(subgroupMax(v)));
    var most = v;
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        most = max(most, bitcast<vec2f>(vec2u(shared_subgroups[s], shared_seconds[s])));
    }
    return subgroupMax(most);
}

// The smallest id among those with the largest key.
fn reduce_best(key: f32, id: u32, lane: u32) -> u32 {
    let top = subgroupMax(key);
    share_both(vec2u(bitcast<u32>(top), subgroupMin(select(0xffffffffu, id, key == top))));
    var most = bitcast<f32>(shared_subgroups[0]);
    var best = shared_seconds[0];
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        let other = bitcast<f32>(shared_subgroups[s]);
        best = select(best, select(shared_seconds[s], min(best, shared_seconds[s]), other == most), other >= most);
        most = max(most, other);
    }
    return subgroupMin(select(0xffffffffu, best, most == subgroupMax(most)));
}

fn reduce_max(v: f32, lane: u32) -> f32 {
    share(bitcast<u32>(subgroupMax(v)));
    var most = v;
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        most = max(most, bitcast<f32>(shared_subgroups[s]));
    }
    return subgroupMax(most);
}

fn reduce_min(v: u32, lane: u32) -> u32 {
    share(subgroupMin(v));
    var least = v;
    for (var s = subgroup_lane; s < subgroups; s += subgroup_lanes) {
        least = min(least, shared_subgroups[s]);
    }
    return subgroupMin(least);
}

// Stores the value of each subgroup from one of its lanes. If several lanes wrote the same value, it would still be a
// race.
fn share(v: u32) {
    workgroupBarrier();     // all lanes have read the previous result
    if subgroup_lane == 0u {
        shared_subgroups[subgroup] = v;
    }
    workgroupBarrier();
}

fn share_both(v: vec2u) {
    workgroupBarrier();
    if subgroup_lane == 0u {
        shared_subgroups[subgroup] = v.x;
        shared_seconds[subgroup] = v.y;
    }
    workgroupBarrier();
}
