// Entry point and reductions over the WG lanes of a workgroup, by a tree in workgroup memory. Needs no optional
// feature. All lanes get the result.
// needs kernel: run; lib/step: flat
var<workgroup> shared_lanes: array<u32, WG>;

const_assert ((WG & (WG - 1u)) == 0u);

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    run(flat(group, groups), lane);
}

fn reduce_add(v: f32, lane: u32) -> f32 {
    share(bitcast<u32>(v), lane);
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            shared_lanes[lane] = bitcast<u32>(shared_f32(lane) + shared_f32(lane + half));
        }
        workgroupBarrier();
    }
    return shared_f32(0u);
}

fn reduce_add2(v: vec2f, lane: u32) -> vec2f { return vec2f(reduce_add(v.x, lane), reduce_add(v.y, lane)); }

fn reduce_add4(v: vec4f, lane: u32) -> vec4f { return vec4f(reduce_add2(v.xy, lane), reduce_add2(v.zw, lane)); }

fn reduce_max(v: f32, lane: u32) -> f32 {
    share(bitcast<u32>(v), lane);
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            shared_lanes[lane] = bitcast<u32>(max(shared_f32(lane), shared_f32(lane + half)));
        }
        workgroupBarrier();
    }
    return shared_f32(0u);
}

fn reduce_max2(v: vec2f, lane: u32) -> vec2f { return vec2f(reduce_max(v.x, lane), reduce_max(v.y, lane)); }

// The smallest id among those with the largest key.
fn reduce_best(key: f32, id: u32, lane: u32) -> u32 {
    let top = reduce_max(key, lane);
    return reduce_min(select(0xffffffffu, id, key == top), lane);
}

fn reduce_min(v: u32, lane: u32) -> u32 {
    share(v, lane);
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            shared_lanes[lane] = min(shared_lanes[lane], shared_lanes[lane + half]);
        }
        workgroupBarrier();
    }
    return shared_lanes[0];
}

fn share(v: u32, lane: u32) {
    workgroupBarrier();     // all lanes have read the previous result
    shared_lanes[lane] = v;
    workgroupBarrier();
}

fn shared_f32(lane: u32) -> f32 { return bitcast<f32>(shared_lanes[lane]); }
