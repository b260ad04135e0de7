// The row x of a step that has no other, and its norm: layer_norm(x), once its mean and deviation are known.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]

const READS_X_EARLY = false;                    // x is not to be read before the look at it
const D4 = D / 4u;

const_assert D % 4u == 0u;

var<private> centre: vec2f;             // the mean of x, and the inverse of its deviation

fn normed_at(d: u32) -> vec4f { return (x[d] - centre.x) * centre.y * gain[d] + shift[d]; }
