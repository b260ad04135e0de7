// Keys and values in blocks.
// needs attention/cache/blocks: scale_at, scale_in; attention/eight: Eight; bits: quants_of
// needs words: key_quants, key_word, value_quants, value_word
fn key8(i: u32) -> Eight {
    let head = i / EIGHTS;
    let c = i % EIGHTS;
    return decoded(key_quants(head, c), key_word(scale_at(head, c)), c);
}

fn value8(i: u32) -> Eight {
    let head = i / EIGHTS;
    let c = i % EIGHTS;
    return decoded(value_quants(head, c), value_word(scale_at(head, c)), c);
}

fn decoded(words: vec2u, scales: u32, c: u32) -> Eight {
    let x = quants_of(words.x, words.y);
    let d = scale_in(scales, c);
    return Eight(d * x.low, d * x.high);
}

fn value4(i: u32) -> vec4f {
    let x = value8(i / 2u);
    return select(x.low, x.high, i % 2u == 1u);
}
