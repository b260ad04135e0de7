// BF16: weight = q, the high half of a float.      x: 64 bytes a run, halves in pairs
const RUN = 32u;

fn floats(four: Four) -> vec4f {
    let first = four << vec2u(16u);
    let second = four & vec2u(0xffff0000u);
    return bitcast<vec4f>(vec4u(first.x, second.x, first.y, second.y));
}
