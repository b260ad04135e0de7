// table[n] in each byte, by its low nibble n: chosen bit by bit for four weights at a time, as memory would be slower.
fn table_iq4(n: vec4u) -> vec4u {
    let b0 = filled(n);
    let b1 = filled(n >> vec4u(1u));
    let b2 = filled(n >> vec4u(2u));
    let b3 = filled(n >> vec4u(3u));
    let first = bitwise(b1, of_two(b0, 0x81u, 0x98u), of_two(b0, 0xadu, 0xbfu));    // -127, -104, -83, -65
    let second = bitwise(b1, of_two(b0, 0xcfu, 0xddu), of_two(b0, 0xeau, 0xf6u));   // -49, -35, -22, -10
    let third = bitwise(b1, of_two(b0, 0x01u, 0x0du), of_two(b0, 0x19u, 0x26u));    // 1, 13, 25, 38
    let fourth = bitwise(b1, of_two(b0, 0x35u, 0x45u), of_two(b0, 0x59u, 0x71u));   // 53, 69, 89, 113
    return bitwise(b3, bitwise(b2, first, second), bitwise(b2, third, fourth));
}

// the lowest bit of each byte in all its bits
fn filled(v: vec4u) -> vec4u {
    let bit = v & vec4u(0x01010101u);
    return (bit << vec4u(8u)) - bit;
}

fn of_two(bit: vec4u, zero: u32, one: u32) -> vec4u {
    return vec4u(zero * 0x01010101u) ^ (bit & vec4u((zero ^ one) * 0x01010101u));
}

fn bitwise(bit: vec4u, zero: vec4u, one: vec4u) -> vec4u { return zero ^ (bit & (zero ^ one)); }
