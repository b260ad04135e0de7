// TQ1_0: weight = d · (n - 1). The n are the digits of bytes in base 3: n[t] = (b · 3^t mod 256) · 3 / 256.
// x: 48 bytes per superblock of 16 runs. For t < 5, digit t of the first 16 bytes is run 2t, digit t of the second 16 bytes
// is run 2t + 1, and digit t of the third 16 bytes is run 10 + t. y: 4 bytes; their digits 0 to 3 are run 15, four weights
// each. z: d as f16
// needs formats/packed: half_of; formats/unsigned: centred; words: word_at
const RUN = 16u;

struct Raw {
    x: vec4u,
    y: u32,
    z: u32,
}

fn run_raw(i: u32) -> Raw {
    let r = i % 16u;
    let third = select(r % 2u, 2u, r >= 10u);
    return Raw(w[plane.x + 3u * (i / 16u) + third], word_at(plane.y, i / 16u), word_at(plane.z, i / 32u));
}

fn scale_of(raw: Raw, i: u32) -> vec2f { return centred(half_of(raw.z, i / 16u), 1.0); }

fn packed_of(raw: Raw, i: u32) -> array<u32, 4> {
    let r = i % 16u;
    let bytes = select(raw.x, vec4u(raw.y), r == 15u);
    let power = select(vec4u(power_of_3(select(r / 2u, r - 10u, r >= 10u))), vec4u(1u, 3u, 9u, 27u), vec4<bool>(r == 15u));
    let n = digits(bytes, power) | (digits(bytes >> vec4u(8u), power) << vec4u(8u));
    return array<u32, 4>(n.x, n.y, n.z, n.w);
}

fn power_of_3(t: u32) -> u32 { return select(1u, 3u, (t & 1u) == 1u) * select(1u, 9u, (t & 2u) == 2u) * select(1u, 81u, t == 4u); }

// for bytes 0 and 2 of each word: the digit that a power of 3 brings to the top
fn digits(bytes: vec4u, power: vec4u) -> vec4u {
    let shifted = ((bytes & vec4u(0x00ff00ffu)) * power) & vec4u(0x00ff00ffu);
    return ((shifted * 3u) >> vec4u(8u)) & vec4u(0x00030003u);
}
