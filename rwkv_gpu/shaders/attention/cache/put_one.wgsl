// Keys and values are written word by word.
// needs attention/cache/blocks: quants_at
fn put_key_quants(head: u32, c: u32, words: vec2u) {
    for (var n = 0u; n < WORDS_8; n++) {
        keys[quants_at(head, c) + n] = words[n];
    }
}

fn put_value_quants(head: u32, c: u32, words: vec2u) {
    for (var n = 0u; n < WORDS_8; n++) {
        values[quants_at(head, c) + n] = words[n];
    }
}

fn put_key_word(at: u32, word: u32) { keys[at] = word; }

fn put_value_word(at: u32, word: u32) { values[at] = word; }
