// Small shaders that examine a device.

//# busy_loop
// state[1] = the state[0]-th number of a chain that starts at state[1]: keeps one lane busy for a while       one workgroup
@group(0) @binding(0) var<storage, read_write> state: array<u32>;

@compute @workgroup_size(1)
fn main() {
    let rounds = state[0];
    var x = state[1] | 1u;
    for (var n = 0u; n < rounds; n++) {    // each number needs the one before, so compilers cannot skip any
        x ^= x << 13u;
        x ^= x >> 17u;
        x ^= x << 5u;
    }
    state[1] = x;
}

//# fused_multiply_add: y = 8 chains of ROUNDS fused multiply-adds of vec4s in every lane: measures how fast a device
// computes
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn run(group: u32, lane: u32) {
    let m = vec4<Number>(vec4f(f32(step.rows) * 0.5));
    let x = vec4<Number>(vec4f(f32(lane) * 0.001));
    var a = array<vec4<Number>, 8>();
    for (var n = 0u; n < ROUNDS; n++) {
        a[0] = fma(a[0], m, x);
        a[1] = fma(a[1], m, x);
        a[2] = fma(a[2], m, x);
        a[3] = fma(a[3], m, x);
        a[4] = fma(a[4], m, x);
        a[5] = fma(a[5], m, x);
        a[6] = fma(a[6], m, x);
        a[7] = fma(a[7], m, x);
    }
    let sum = (a[0] + a[1]) + (a[2] + a[3]) + (a[4] + a[5]) + (a[6] + a[7]);
    if f32(sum.x + sum.y + sum.z + sum.w) == 1.0 {    // never, but no compiler knows
        y[0] = f32(sum.x);
    }
}

//# lanes: met[far, i] = the lane whose value lane i gets from 2^far lanes away in its subgroup      one workgroup
@group(0) @binding(0) var<storage, read_write> met: array<u32>;    // [FARS, 64]

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var far = 0u; far < FARS; far++) {
        met[far * 64u + lane] = subgroupShuffleXor(lane, 1u << far);
    }
}

//# stream
// y[g] = the sum of a piece of x      a workgroup for EACH · WG vec4s, a lane for every WG-th: measures how fast memory
// is read
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn run(group: u32, lane: u32) {
    let start = group * EACH * WG + lane;
    var a = vec4f();
    var b = vec4f();
    var c = vec4f();
    var d = vec4f();
    for (var n = 0u; n < EACH; n += 4u) {
        let i = start + n * WG;
        a += x[i];
        b += x[i + WG];
        c += x[i + 2u * WG];
        d += x[i + 3u * WG];
    }
    let sum = (a + b) + (c + d);
    if sum.x + sum.y + sum.z + sum.w == 1.0 {    // never, but no compiler knows
        y[0] = sum.x;
    }
}

//# subgroup: size[0] = the subgroup size of this kernel      one workgroup
@group(0) @binding(0) var<storage, read_write> size: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(subgroup_size) subgroup_size: u32) {
    size[0] = subgroup_size;
}
