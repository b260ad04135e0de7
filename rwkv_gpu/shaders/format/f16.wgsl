// F16: weight = q.      x: 64 bytes a run, halves in pairs
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(1.0, 0.0); }

fn run_quants(i: u32) -> array<vec4f, 8> {
    var q: array<vec4f, 8>;
    for (var j = 0u; j < 4u; j++) {
        let pairs = w[plane.x + i * 4u + j];
        q[2u * j] = vec4f(unpack2x16float(pairs.x), unpack2x16float(pairs.y));
        q[2u * j + 1u] = vec4f(unpack2x16float(pairs.z), unpack2x16float(pairs.w));
    }
    return q;
}
