// Writes keys and values in rotated blocks. A lane has 8 dims, and computes its whole block, so that no lane waits for
// another.
// needs attention/cache/blocks: eight_in, scale_at, scale_of_block; attention/heads: own_value8, turned8; bits: encoded
// needs put: put_key_quants, put_key_word, put_value_quants, put_value_word; rotation: rotated
struct Stored {
    quants: vec2u,
    scales: vec2f,      // the first lane of a word of scales computes both
}

fn put_key(i: u32, t: u32, head: u32, _x: Eight) {
    let c = i % EIGHTS;
    let stored = stored_at(t, head, c, true);
    put_key_quants(i / EIGHTS, c, stored.quants);
    if c % 8u == 0u {
        put_key_word(scale_at(i / EIGHTS, c), pack2x16float(stored.scales));
    }
}

fn put_value(i: u32, t: u32, head: u32, _x: Eight) {
    let c = i % EIGHTS;
    let stored = stored_at(t, head, c, false);
    put_value_quants(i / EIGHTS, c, stored.quants);
    if c % 8u == 0u {
        put_value_word(scale_at(i / EIGHTS, c), pack2x16float(stored.scales));
    }
}

fn stored_at(t: u32, head: u32, c: u32, is_key: bool) -> Stored {
    var stored: Stored;
    for (var n = 0u; n < select(1u, 2u, c % 8u == 0u); n++) {
        let block = block_of_8(t, head, c / 4u + n, is_key);
        stored.scales[n] = scale_of_block(block);
        if n == 0u {
            stored.quants = encoded(eight_in(block, c % 4u), stored.scales[n]);
        }
    }
    return stored;
}

// The stored block of a row's key or value; zeros after the last. Loop ends are not constant, so that compilers do not
// unroll the loops.
fn block_of_8(t: u32, head: u32, block: u32, is_key: bool) -> array<vec4f, 8> {
    var x: array<vec4f, 8>;
    for (var c = 4u * block; c < min(4u * block + 4u, EIGHTS); c++) {
        var eight: Eight;
        if is_key {
            eight = turned8(t, H + head, c);
        } else {
            eight = own_value8(t, head, c);
        }
        for (var n = 0u; n < 4u; n++) {
            if n == c % 4u {
                x[2u * n] = eight.low;
                x[2u * n + 1u] = eight.high;
            }
        }
    }
    return rotated(x);
}
