// 8 dims of a key or a value as they lie: quants, and the scale of their block.
// needs attention/cache/blocks: larger, quants_at, rounded_scale, scale_at, scale_in
// needs attention/eight: Eight
// needs bits: decoded, encoded
alias Half = vec4f;     // 4 dims, not yet quantised

struct Raw {
    words: vec2u,
    scale: f32,
}

fn raw_key(i: u32) -> Raw {
    let at = quants_at(i);
    return Raw(vec2u(keys[at], keys[at + WORDS_8 - 1u]), scale_in(keys[scale_at(i)], i));
}

fn raw_value(i: u32) -> Raw {
    let at = quants_at(i);
    return Raw(vec2u(values[at], values[at + WORDS_8 - 1u]), scale_in(values[scale_at(i)], i));
}

fn eight_of(raw: Raw) -> Eight { return decoded(raw.words.x, raw.words.y, raw.scale); }

fn half_of(x: vec4f) -> Half { return x; }

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw {
    let d = own_scale(i / 8u);
    return Raw(encoded(Eight(own[i], own[i + 1u]), d), d);
}

// The scale of a block of `own`.
fn own_scale(block: u32) -> f32 {
    var largest = 0.0;
    for (var n = 8u * block; n < 8u * block + 8u; n++) {
        let x = own[n];
        largest = larger(largest, larger(larger(x.x, x.y), larger(x.z, x.w)));
    }
    return rounded_scale(largest);
}

// The row's own key and value to the place of 8 dims.
fn write_own(i: u32) {
    let c = i % EIGHTS;
    let key = own8(2u * c);
    let value = own8(N / 4u + 2u * c);
    for (var n = 0u; n < WORDS_8; n++) {
        keys[quants_at(i) + n] = key.words[n];
        values[quants_at(i) + n] = value.words[n];
    }
    if c % 8u == 0u {
        var after = vec2f();
        if c + 4u < EIGHTS {
            after = vec2f(own_scale(c / 4u + 1u), own_scale(N / 32u + c / 4u + 1u));
        }
        keys[scale_at(i)] = pack2x16float(vec2f(key.scale, after.x));
        values[scale_at(i)] = pack2x16float(vec2f(value.scale, after.y));
    }
}
