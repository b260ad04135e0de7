// Keys and values are read 8 bytes at a time: 8 dims of a head in bytes, whose words are an even number.
// needs attention/cache/blocks: quants_at
alias CacheWord = vec2u;

const_assert HEAD_WORDS % 2u == 0u && WORDS_8 == 2u;

// The quants of 8 dims, number c of a head.
fn key_quants(head: u32, c: u32) -> vec2u { return keys[quants_at(head, c) / 2u]; }

fn value_quants(head: u32, c: u32) -> vec2u { return values[quants_at(head, c) / 2u]; }

fn key_word(at: u32) -> u32 { return keys[at / 2u][at % 2u]; }

fn value_word(at: u32) -> u32 { return values[at / 2u][at % 2u]; }
