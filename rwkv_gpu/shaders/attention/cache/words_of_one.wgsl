// Keys and values are read word by word: a head in blocks is no multiple of 16 bytes.
// needs attention/cache/blocks: quants_at
alias CacheWord = u32;

// The quants of 8 dims, number c of a head; the second word is the first again where there is one.
fn key_quants(head: u32, c: u32) -> vec2u {
    let at = quants_at(head, c);
    return vec2u(keys[at], keys[at + WORDS_8 - 1u]);
}

fn value_quants(head: u32, c: u32) -> vec2u {
    let at = quants_at(head, c);
    return vec2u(values[at], values[at + WORDS_8 - 1u]);
}

fn key_word(at: u32) -> u32 { return keys[at]; }

fn value_word(at: u32) -> u32 { return values[at]; }
