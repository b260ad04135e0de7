// Quants of keys and values are written 8 bytes at a time, scales word by word.
// needs attention/cache/blocks: quants_at
fn put_key_quants(head: u32, c: u32, words: vec2u) { keys[quants_at(head, c) / 2u] = words; }

fn put_value_quants(head: u32, c: u32, words: vec2u) { values[quants_at(head, c) / 2u] = words; }

fn put_key_word(at: u32, word: u32) { keys[at / 2u][at % 2u] = word; }

fn put_value_word(at: u32, word: u32) { values[at / 2u][at % 2u] = word; }
