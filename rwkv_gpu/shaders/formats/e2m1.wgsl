// 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, in each byte, by its low nibble: sign, 2 bits of exponent, 1 of mantissa
fn doubled(n: vec4u) -> vec4u {
    let one = vec4u(0x01010101u);
    let top = (n >> vec4u(2u)) & one;
    let bottom = (n >> vec4u(1u)) & one;
    let mantissa = (n & one) | ((top | bottom) << vec4u(1u));       // with its leading one, unless subnormal
    let twice = mantissa + (mantissa & ((top << vec4u(1u)) | top));
    let both = top & bottom;
    let size = twice + (twice & ((both << vec4u(3u)) - both));
    // -size is (size ^ 0x7f) + 1 with the top bit turned: no carry leaves a byte
    let sign = (n >> vec4u(3u)) & one;
    let top_bit = sign << vec4u(7u);
    return ((size ^ (top_bit - sign)) + sign) ^ top_bit;
}
