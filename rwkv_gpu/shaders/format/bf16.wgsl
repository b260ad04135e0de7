// BF16: weight = q, the high half of a float.      x: 64 bytes a run, halves in pairs
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(1.0, 0.0); }

fn run_quants(i: u32) -> array<vec4f, 8> {
    var q: array<vec4f, 8>;
    for (var j = 0u; j < 4u; j++) {
        let pairs = w[plane.x + i * 4u + j];
        let first = pairs << vec4u(16u);
        let second = pairs & vec4u(0xffff0000u);
        q[2u * j] = bitcast<vec4f>(vec4u(first.x, second.x, first.y, second.y));
        q[2u * j + 1u] = bitcast<vec4f>(vec4u(first.z, second.z, first.w, second.w));
    }
    return q;
}
