// Writes keys and values in blocks. A lane has 8 dims, and computes the scale of its whole block, so that no lane waits
// for another.
// needs attention/cache/blocks: larger, largest_of, rounded_scale, scale_at; attention/heads: own_value8, turned8
// needs bits: encoded; put: put_key_quants, put_key_word, put_value_quants, put_value_word
fn put_key(i: u32, t: u32, head: u32, x: Eight) {
    let c = i % EIGHTS;
    let d = key_scale(t, head, c / 4u);
    put_key_quants(i / EIGHTS, c, encoded(x, d));
    if c % 8u == 0u {
        put_key_word(scale_at(i / EIGHTS, c), pack2x16float(vec2f(d, key_scale(t, head, c / 4u + 1u))));
    }
}

fn put_value(i: u32, t: u32, head: u32, x: Eight) {
    let c = i % EIGHTS;
    let d = own_value_scale(t, head, c / 4u);
    put_value_quants(i / EIGHTS, c, encoded(x, d));
    if c % 8u == 0u {
        put_value_word(scale_at(i / EIGHTS, c), pack2x16float(vec2f(d, own_value_scale(t, head, c / 4u + 1u))));
    }
}

// The scale of a block of a row's key; 0 beyond the last block.
fn key_scale(t: u32, head: u32, block: u32) -> f32 {
    var largest = 0.0;
    for (var c = 4u * block; c < min(4u * block + 4u, EIGHTS); c++) {
        largest = larger(largest, largest_of(turned8(t, H + head, c)));
    }
    return rounded_scale(largest);
}

fn own_value_scale(t: u32, head: u32, block: u32) -> f32 {
    var largest = 0.0;
    for (var c = 4u * block; c < min(4u * block + 4u, EIGHTS); c++) {
        largest = larger(largest, largest_of(own_value8(t, head, c)));
    }
    return rounded_scale(largest);
}
