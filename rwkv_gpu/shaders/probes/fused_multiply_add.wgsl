// y = 8 chains of ROUNDS fused multiply-adds of vec4s in every lane: how fast a device computes
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
