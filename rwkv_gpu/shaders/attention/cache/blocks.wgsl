// A head in blocks of 32 dims: its quants, then the scales as halves, two to a word.
// needs bits: scale_for
const EIGHTS = N / 8u;                          // of a head; a block has four
const SCALES = EIGHTS * WORDS_8;                // words of a head before its scales
const HEAD_WORDS = SCALES + (EIGHTS + 7u) / 8u;

const_assert N % 32u == 0u;

// The first word of 8 dims, and the word of their scale.
fn quants_at(i: u32) -> u32 { return i / EIGHTS * HEAD_WORDS + i % EIGHTS * WORDS_8; }

fn scale_at(i: u32) -> u32 { return i / EIGHTS * HEAD_WORDS + SCALES + i % EIGHTS / 8u; }

// The scale of 8 dims from the word that has it.
fn scale_in(word: u32, i: u32) -> f32 { return unpack2x16float(word)[i % EIGHTS / 4u % 2u]; }

// As it is stored.
fn rounded_scale(largest: f32) -> f32 { return unpack2x16float(pack2x16float(vec2f(scale_for(largest), 0.0))).x; }

// The number of largest size; of equal sizes the first.
fn larger(a: f32, b: f32) -> f32 { return select(a, b, abs(b) > abs(a)); }

fn largest_of(x: Eight) -> f32 {
    let low = larger(larger(x.low.x, x.low.y), larger(x.low.z, x.low.w));
    return larger(low, larger(larger(x.high.x, x.high.y), larger(x.high.z, x.high.w)));
}
