// y[g] = the sum of a piece of x      a workgroup for EACH · WG vec4s, a lane for every WG-th: how fast memory is read
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
