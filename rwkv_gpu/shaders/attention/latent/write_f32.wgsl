// 8 dims of a latent to its page, as float32.
fn put8(i: u32, x: Eight) {
    keys[2u * i] = bitcast<vec4u>(x.low);
    keys[2u * i + 1u] = bitcast<vec4u>(x.high);
}
