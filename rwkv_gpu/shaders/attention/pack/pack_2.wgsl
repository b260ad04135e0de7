// Two heads beside each other.
alias Pack = mat2x4f;   // a vec4 of each
alias Each = vec2f;     // a number of each
const PACK = 2u;

fn heads_of(i: u32) -> Pack { return Pack(turned[i], turned[i + N4]); }

fn outer(sum: Pack, v: vec4f, w: Each) -> Pack { return Pack(fma(v, vec4f(w.x), sum[0]), fma(v, vec4f(w.y), sum[1])); }

fn scaled(x: Pack, w: Each) -> Pack { return Pack(x[0] * w.x, x[1] * w.y); }

fn shuffled(x: Pack, far: u32) -> Pack { return Pack(subgroupShuffleXor(x[0], far), subgroupShuffleXor(x[1], far)); }

fn numbers_from(first: u32) -> Each { return f32(first) + vec2f(0.0, 1.0); }

fn largest_of_each(x: Pack) -> Each { return Each(largest(x[0]), largest(x[1])); }

fn largest(x: vec4f) -> f32 { return max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w))); }

fn store_sums(x: Pack, i: u32) {
    sums[i] = x[0];
    sums[i + N4] = x[1];
}
