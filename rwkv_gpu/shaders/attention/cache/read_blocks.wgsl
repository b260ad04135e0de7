// Keys and values in blocks.
// needs attention/cache/blocks: quants_at, scale_at, scale_in
// needs bits: decoded
fn key8(i: u32) -> Eight {
    let at = quants_at(i);
    return decoded(keys[at], keys[at + WORDS_8 - 1u], scale_in(keys[scale_at(i)], i));
}

fn value8(i: u32) -> Eight {
    let at = quants_at(i);
    return decoded(values[at], values[at + WORDS_8 - 1u], scale_in(values[scale_at(i)], i));
}

fn value4(i: u32) -> vec4f {
    let x = value8(i / 2u);
    return select(x.low, x.high, i % 2u == 1u);
}
