// Entry points of kernels without reductions, and reductions within one subgroup.

//# broadcast: Every lane's value to all lanes of a subgroup of 8.
fn spread(v: vec4f) -> array<vec4f, 8> {
    return array<vec4f, 8>(
        #for i in 0..8: subgroupBroadcast(v, {i}u),
    );
}

//# one_subgroup: Entry point and reductions for workgroups that are a single subgroup, without barriers.
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

//# plain: Entry point for workgroups of WG lanes without reductions.
// needs kernel: run; lib/step: flat
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    run(flat(group, groups), lane);
}

//# products: Adds the products of a chunk of a lane's own R rows of W with row t of x.
fn add_products(
    acc: ptr<function, array<f32, R * TB>>,
    q: ptr<function, array<array<vec4f, RUN / 4u>, R * PARTS>>,
    scale: ptr<function, array<vec2f, R * PARTS>>,
    values: ptr<function, array<vec4f, 8>>,
    t: u32,
) {
    for (var p = 0u; p < PARTS; p++) {
        var dots: array<f32, R>;
        for (var j = 0u; j < R; j++) {
            dots[j] = 0.0;
        }
        var sums = 0.0;
        for (var n = 0u; n < RUN / 4u; n++) {
            let part = (*values)[p * (RUN / 4u) + n];
            sums += dot(part, vec4f(1.0));
            for (var j = 0u; j < R; j++) {
                dots[j] += dot((*q)[j * PARTS + p][n], part);
            }
        }
        for (var j = 0u; j < R; j++) {
            (*acc)[j * TB + t] += (*scale)[j * PARTS + p].x * dots[j] + (*scale)[j * PARTS + p].y * sums;
        }
    }
}
