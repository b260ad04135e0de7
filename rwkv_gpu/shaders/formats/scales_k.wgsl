// (d · s, -dmin · m) of run r of a superblock of 8, from 4 words: d | dmin as f16, then words whose nibble r is of
// run r: low bits of s, low bits of m, high bits of s | those of m << 2.
fn scale_and_min(header: vec4u, r: u32) -> vec2f {
    let d = unpack2x16float(header.x);
    let v = header.yzw >> vec3u(4u * r);
    let s = (v.x & 15u) | ((v.z & 3u) << 4u);
    let m = (v.y & 15u) | ((v.z & 12u) << 2u);
    return vec2f(d.x * f32(s), -d.y * f32(m));
}
