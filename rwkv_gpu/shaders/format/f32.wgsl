// F32: weight = q.      x: 128 bytes a run
const RUN = 32u;

fn run_scale(i: u32) -> vec2f { return vec2f(1.0, 0.0); }

fn run_quants(i: u32) -> array<vec4f, 8> {
    var q: array<vec4f, 8>;
    for (var j = 0u; j < 8u; j++) {
        q[j] = bitcast<vec4f>(w[plane.x + i * 8u + j]);
    }
    return q;
}
