// The distribution of 2, 3 or 4 heads over the lanes of a decode workgroup.

//# pack_2: Two heads side by side.
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

//# pack_3: Three heads side by side.
alias Pack = mat3x4f;   // a vec4 of each
alias Each = vec3f;     // a number of each
const PACK = 3u;

fn heads_of(i: u32) -> Pack { return Pack(turned[i], turned[i + N4], turned[i + 2u * N4]); }

fn outer(sum: Pack, v: vec4f, w: Each) -> Pack {
    return Pack(fma(v, vec4f(w.x), sum[0]), fma(v, vec4f(w.y), sum[1]), fma(v, vec4f(w.z), sum[2]));
}

fn scaled(x: Pack, w: Each) -> Pack { return Pack(x[0] * w.x, x[1] * w.y, x[2] * w.z); }

fn shuffled(x: Pack, far: u32) -> Pack {
    return Pack(subgroupShuffleXor(x[0], far), subgroupShuffleXor(x[1], far), subgroupShuffleXor(x[2], far));
}

fn numbers_from(first: u32) -> Each { return f32(first) + vec3f(0.0, 1.0, 2.0); }

fn largest_of_each(x: Pack) -> Each { return Each(largest(x[0]), largest(x[1]), largest(x[2])); }

fn largest(x: vec4f) -> f32 { return max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w))); }

fn store_sums(x: Pack, i: u32) {
    sums[i] = x[0];
    sums[i + N4] = x[1];
    sums[i + 2u * N4] = x[2];
}

//# pack_4: Four heads side by side.
alias Pack = mat4x4f;   // a vec4 of each
alias Each = vec4f;     // a number of each
const PACK = 4u;

fn heads_of(i: u32) -> Pack {
    return Pack(turned[i], turned[i + N4], turned[i + 2u * N4], turned[i + 3u * N4]);
}

fn outer(sum: Pack, v: vec4f, w: Each) -> Pack {
    return Pack(fma(v, vec4f(w.x), sum[0]), fma(v, vec4f(w.y), sum[1]), fma(v, vec4f(w.z), sum[2]), fma(v, vec4f(w.w), sum[3]));
}

fn scaled(x: Pack, w: Each) -> Pack { return Pack(x[0] * w.x, x[1] * w.y, x[2] * w.z, x[3] * w.w); }

fn shuffled(x: Pack, far: u32) -> Pack {
    return Pack(
        subgroupShuffleXor(x[0], far), subgroupShuffleXor(x[1], far),
        subgroupShuffleXor(x[2], far), subgroupShuffleXor(x[3], far),
    );
}

fn numbers_from(first: u32) -> Each { return f32(first) + vec4f(0.0, 1.0, 2.0, 3.0); }

fn largest_of_each(x: Pack) -> Each { return Each(largest(x[0]), largest(x[1]), largest(x[2]), largest(x[3])); }

fn largest(x: vec4f) -> f32 { return max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w))); }

fn store_sums(x: Pack, i: u32) {
    sums[i] = x[0];
    sums[i + N4] = x[1];
    sums[i + 2u * N4] = x[2];
    sums[i + 3u * N4] = x[3];
}
