// A head in blocks of 32 dims: its quants, then the scales as halves, two to a word.
// needs attention/eight: Eight; bits: scale_for
const EIGHTS = N / 8u;                          // groups of 8 dims in a head; a block has four
const SCALES = EIGHTS * WORDS_8;                // words of a head before its scales
const HEAD_WORDS = SCALES + (EIGHTS + 7u) / 8u;

const_assert N % 32u == 0u;

// The first word of dims 8 c .. 8 c + 8 of a head, and the word with their scale.
fn quants_at(head: u32, c: u32) -> u32 { return head * HEAD_WORDS + c * WORDS_8; }

fn scale_at(head: u32, c: u32) -> u32 { return head * HEAD_WORDS + SCALES + c / 8u; }

// The scale of 8 dims, from its word.
fn scale_in(word: u32, c: u32) -> f32 { return unpack2x16float(word >> (c / 4u % 2u * 16u)).x; }

// The scale after rounding to float16, as it is stored.
fn rounded_scale(largest: f32) -> f32 { return unpack2x16float(pack2x16float(vec2f(scale_for(largest), 0.0))).x; }

// The number with the largest magnitude; the first one if several are equal.
fn larger(a: f32, b: f32) -> f32 { return select(a, b, abs(b) > abs(a)); }

fn largest_of(x: Eight) -> f32 {
    let low = larger(larger(x.low.x, x.low.y), larger(x.low.z, x.low.w));
    return larger(low, larger(larger(x.high.x, x.high.y), larger(x.high.z, x.high.w)));
}

// The scale of 32 dims.
fn scale_of_block(x: array<vec4f, 8>) -> f32 {
    var largest = 0.0;
    for (var n = 0u; n < 8u; n++) {
        largest = larger(largest, larger(larger(x[n].x, x[n].y), larger(x[n].z, x[n].w)));
    }
    return rounded_scale(largest);
}

// Group number n of eight dims of a block.
fn eight_in(x: array<vec4f, 8>, number: u32) -> Eight {
    var found = Eight(x[0], x[1]);
    for (var n = 1u; n < 4u; n++) {
        if n == number {
            found = Eight(x[2u * n], x[2u * n + 1u]);
        }
    }
    return found;
}
