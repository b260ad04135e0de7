// Reads 8 dims of a key or a value without conversion: quants, and the scale of their block.
// needs attention/cache/blocks: larger, rounded_scale, scale_at, scale_in; attention/eight: Eight
// needs bits: encoded, quants_of; put: put_key_quants, put_key_word, put_value_quants, put_value_word
// needs rotation: rotated; words: key_quants, key_word, value_quants, value_word
alias Half = vec4f;     // 4 dims, not yet quantised

const RAW_WORDS = 3u;
const LAST_AGAIN = true;

struct Raw {
    words: vec2u,
    scales: u32,    // the scales of two blocks; products do not wait for them
}

fn raw_key(head: u32, c: u32) -> Raw { return Raw(key_quants(head, c), key_word(scale_at(head, c))); }

fn raw_value(head: u32, c: u32) -> Raw { return Raw(value_quants(head, c), value_word(scale_at(head, c))); }

// The numbers without their scale.
fn eight_of(raw: Raw) -> Eight { return quants_of(raw.words.x, raw.words.y); }

// The scale of dims 8 c .. 8 c + 8.
fn scale_of(raw: Raw, c: u32) -> f32 { return scale_in(raw.scales, c); }

fn half_of(x: vec4f) -> Half { return x; }

// The stored block of `own`.
fn rotate_own(block: u32) {
    var x: array<vec4f, 8>;
    for (var n = 0u; n < 8u; n++) {
        x[n] = own[8u * block + n];
    }
    x = rotated(x);
    for (var n = 0u; n < 8u; n++) {
        own[8u * block + n] = x[n];
    }
}

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw {
    let d = own_scale(i / 8u);
    return Raw(encoded(Eight(own[i], own[i + 1u]), d), pack2x16float(vec2f(d)));
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

// 8 dims of the row's own key and value.
fn write_own(head: u32, c: u32) {
    let key = own8(2u * c);
    let value = own8(N / 4u + 2u * c);
    put_key_quants(head, c, key.words);
    put_value_quants(head, c, value.words);
    if c % 8u == 0u {
        var after = vec2f();
        if c + 4u < EIGHTS {
            after = vec2f(own_scale(c / 4u + 1u), own_scale(N / 32u + c / 4u + 1u));
        }
        put_key_word(scale_at(head, c), pack2x16float(vec2f(scale_of(key, c), after.x)));
        put_value_word(scale_at(head, c), pack2x16float(vec2f(scale_of(value, c), after.y)));
    }
}
