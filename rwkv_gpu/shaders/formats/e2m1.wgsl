// 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, of 4 bits each: sign, 2 bits of exponent, 1 of mantissa.
// Sizes have 4 bits, too: those of eight numbers are computed at once.
fn sizes(n: vec4u) -> vec4u {
    let one = vec4u(0x11111111u);
    let top = (n >> vec4u(2u)) & one;
    let bottom = (n >> vec4u(1u)) & one;
    let mantissa = (n & one) | ((top | bottom) << vec4u(1u));       // with its leading one, unless subnormal
    let twice = mantissa + (mantissa & ((top << vec4u(1u)) | top));
    let both = top & bottom;
    return twice + (twice & ((both << vec4u(3u)) - both));
}

// Bytes of the low four bits of `size`, negative where bit 3 of the byte in `n` is set: no carry leaves a byte.
fn with_signs(size: vec4u, n: vec4u) -> vec4u {
    let negative = size & (((n >> vec4u(3u)) & vec4u(0x01010101u)) * 15u);
    return (((size & vec4u(0x0f0f0f0fu)) | vec4u(0x80808080u)) - (negative << vec4u(1u))) ^ vec4u(0x80808080u);
}
