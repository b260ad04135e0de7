// Entries of a codebook, 16 bits each in a plane of their own, and what their codes become.
// needs words: word_at
fn entry(table: u32, n: u32) -> u32 { return (word_at(table, n / 2u) >> (16u * (n % 2u))) & 0xffffu; }

// The 2-bit codes of an entry as bytes, four in each word.
fn eight_codes(entry: u32) -> vec2u {
    let nibbles = (vec2u(entry, entry >> 8u) | (vec2u(entry, entry >> 8u) << vec2u(12u))) & vec2u(0x000f000fu);
    return (nibbles | (nibbles << vec2u(6u))) & vec2u(0x03030303u);
}

// The 4-bit codes of an entry as bytes.
fn four_codes(entry: u32) -> u32 {
    let pairs = (entry | (entry << 8u)) & 0x00ff00ffu;
    return (pairs | (pairs << 4u)) & 0x0f0f0f0fu;
}

// Bytes that are not 0 with the signs that four bits tell.
fn with_signs(bytes: u32, signs: u32) -> u32 {
    let negative = ((signs & 15u) * 0x00204081u) & 0x01010101u;
    return (bytes ^ (negative * 255u)) + negative;
}

// Seven signs and the eighth, which makes the number of negative ones even.
fn even_signs(seven: u32) -> u32 { return (seven & 127u) | ((countOneBits(seven & 127u) & 1u) << 7u); }
