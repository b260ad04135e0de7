// Heads are normed before they turn.
@group(0) @binding(2) var<storage, read> norms: array<f32>;     // of q and k [2, N]

const NORMED = true;

fn norm_weight(d: u32) -> f32 { return norms[d]; }

fn head_scale(start: u32) -> f32 {
    var squares = vec4f();
    for (var i = start; i < start + N / 4u; i += 2u) {
        squares += qkv[i] * qkv[i] + qkv[i + 1u] * qkv[i + 1u];
    }
    return root_of(dot(squares, vec4f(1.0)));
}

fn root_of(squares: f32) -> f32 { return inverseSqrt(squares / f32(N) + EPS); }
