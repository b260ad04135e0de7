// A running softmax with exponentials in float16 for matrix units; scores are exponents of two. Exponentials are relative to a
// reference score, which is replaced only if a score exceeds it by GROWTH, the range of float16. Only then are earlier sums
// rescaled.
const LOWEST = -1e38;                       // score of a masked position
const GROWTH = 8.0;                         // the limit of an exponent, as a power of two
const LOG2E = 1.4426950408889634;

// The softmax of a query. Each lane of the query has a part of the sum.
struct Softmax {
    reference: f32,
    sum: f32,           // the sum of this lane's exponentials
    fade: f32,          // factor of earlier sums; less than 1 if the reference was replaced
}

fn nothing_seen() -> Softmax { return Softmax(LOWEST, 0.0, 1.0); }

// Updates the reference by the largest score of another block of keys.
fn further(before: Softmax, top: f32) -> Softmax {
    if top <= before.reference + GROWTH {
        return Softmax(before.reference, before.sum, 1.0);
    }
    let fade = exp2(max(before.reference - top, -200.0));
    return Softmax(top, before.sum * fade, fade);
}

fn exponentials(scores: vec4f, reference: f32) -> vec4<f16> {
    return vec4<f16>(select(exp2(scores - reference), vec4f(), scores <= vec4f(LOWEST)));
}

fn sum_of(weights: vec4<f16>) -> f32 { return dot(vec4f(weights), vec4f(1.0)); }
