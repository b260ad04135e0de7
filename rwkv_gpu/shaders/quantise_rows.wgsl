// Q8_1: x[32 i .. 32 i + 32] = d · q, with q in -127 .. 127, one lane per run i of a buffer
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4u>;     // 3 a run: 32 signed bytes, then d

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= RUNS {
        return;
    }
    var values: array<vec4f, 8>;
    var most = vec4f();
    for (var j = 0u; j < 8u; j++) {
        values[j] = x[i * 8u + j];
        most = max(most, abs(values[j]));
    }
    let d = max(max(most.x, most.y), max(most.z, most.w)) / 127.0;
    let inverse = select(0.0, 1.0 / d, d > 0.0);
    var words: array<u32, 8>;
    for (var j = 0u; j < 8u; j++) {
        words[j] = pack4xI8(vec4i(round(values[j] * inverse)));
    }
    y[i * 3u] = vec4u(words[0], words[1], words[2], words[3]);
    y[i * 3u + 1u] = vec4u(words[4], words[5], words[6], words[7]);
    y[i * 3u + 2u] = vec4u(bitcast<u32>(d), 0u, 0u, 0u);
}
