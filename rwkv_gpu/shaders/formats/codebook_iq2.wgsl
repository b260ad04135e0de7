// Eight weights of the IQ2 formats: codes 0, 1, 2 are 8, 25, 43.
// needs formats/codebook: eight_codes, entry, with_signs
fn eight_weights(table: u32, number: u32, signs: u32) -> vec2u {
    let codes = eight_codes(entry(table, number));
    let one = vec2u(0x01010101u);
    let sizes = 8u * one + 17u * (codes & one) + 35u * ((codes >> vec2u(1u)) & one);
    return vec2u(with_signs(sizes.x, signs), with_signs(sizes.y, signs >> 4u));
}

fn sixteenths(d: f32, s: u32) -> vec2f { return vec2f(d * (0.5 + f32(s)) * 0.25, 0.0); }
