// The layout of keys and values in pages: words of memory, floats, and bits of quantised blocks.

//# as_they_are: Blocks of 32 dims are stored as they are.
const ROTATED = false;

fn rotated(x: array<vec4f, 8>) -> array<vec4f, 8> { return x; }

//# bits_q4: x = d (q - 8), q four bits: 8 dims are one word.
// needs attention/eight: Eight
const WORDS_8 = 1u;
const QUANT_OFFSET = 8;   // stored number minus quant

// The scale of dims whose largest magnitude is this number.
fn scale_for(largest: f32) -> f32 { return largest / -8.0; }

// Inserts the bits into floats, 2^23 + q to 2^11 + q. If integer conversion is slow, this is several times as fast.
fn quants_of(word: u32, _same: u32) -> Eight { return Eight(four_of(word), four_of(word >> 16u)); }

// The quants as bytes with their offset, and 8 numbers in order.
fn bytes_of(words: vec2u) -> vec2u { return vec2u(words.x, words.x >> 4u) & vec2u(0x0f0f0f0fu); }

fn in_byte_order(low: vec4f, high: vec4f) -> Eight {
    return Eight(vec4f(low.xz, high.xz), vec4f(low.yw, high.yw));
}

fn four_of(x: u32) -> vec4f {
    let bits = (vec4u(x) & vec4u(0xfu, 0xf0u, 0xf00u, 0xf000u)) | vec4u(0x4b000000u, 0x49000000u, 0x47000000u, 0x45000000u);
    return bitcast<vec4f>(bits) - vec4f(8388616.0, 524296.0, 32776.0, 2056.0);
}

fn encoded(x: Eight, d: f32) -> vec2u {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    let low = vec4u(clamp(round(x.low * inverse) + 8.0, vec4f(), vec4f(15.0)));
    let high = vec4u(clamp(round(x.high * inverse) + 8.0, vec4f(), vec4f(15.0)));
    return vec2u(
        low.x | (low.y << 4u) | (low.z << 8u) | (low.w << 12u)
            | (high.x << 16u) | (high.y << 20u) | (high.z << 24u) | (high.w << 28u),
        0u,
    );
}

//# bits_q8: x = d q, q a signed byte: 8 dims are two words.
// needs attention/eight: Eight
const WORDS_8 = 2u;
const QUANT_OFFSET = 0;   // stored byte minus quant

// The scale of dims whose largest magnitude is this number.
fn scale_for(largest: f32) -> f32 { return abs(largest) / 127.0; }

// Bytes become the last or the second last byte of a float: 2^23 + q + 128 or 2^15 + q + 128. If integer conversion is
// slow, this is several times as fast.
fn quants_of(low: u32, high: u32) -> Eight { return Eight(four_of(low), four_of(high)); }

// The quants as signed bytes, and 8 numbers in order.
fn bytes_of(words: vec2u) -> vec2u { return words; }

fn in_byte_order(low: vec4f, high: vec4f) -> Eight { return Eight(low, high); }

fn four_of(word: u32) -> vec4f {
    let x = word ^ 0x80808080u;
    let y = x >> 16u;
    let bits = (vec4u(x, x, y, y) & vec4u(0xffu, 0xff00u, 0xffu, 0xff00u)) | vec4u(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u);
    return bitcast<vec4f>(bits) - vec4f(8388736.0, 32896.0, 8388736.0, 32896.0);
}

fn encoded(x: Eight, d: f32) -> vec2u {
    let inverse = select(1.0 / d, 0.0, d == 0.0);
    return vec2u(four_bytes(x.low * inverse), four_bytes(x.high * inverse));
}

fn four_bytes(x: vec4f) -> u32 {
    let q = vec4u(vec4i(clamp(round(x), vec4f(-127.0), vec4f(127.0)))) & vec4u(255u);
    return q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
}

//# put_one: Keys and values are written word by word.
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

//# put_two: Quants of keys and values are written 8 bytes at a time, scales word by word.
// needs attention/cache/blocks: quants_at
fn put_key_quants(head: u32, c: u32, words: vec2u) { keys[quants_at(head, c) / 2u] = words; }

fn put_value_quants(head: u32, c: u32, words: vec2u) { values[quants_at(head, c) / 2u] = words; }

fn put_key_word(at: u32, word: u32) { keys[at / 2u][at % 2u] = word; }

fn put_value_word(at: u32, word: u32) { values[at / 2u][at % 2u] = word; }

//# raw_f16: Reads 8 dims of a key or a value without conversion: halves, two per word.
// needs attention/eight: Eight; read: halves
alias Raw = vec4u;
alias Half = vec2u;     // 4 dims

const RAW_WORDS = 4u;
const LAST_AGAIN = false;   // true if decode reloads the last block of a run instead of skipping the load by a branch

fn raw_key(head: u32, c: u32) -> Raw { return keys[head * (N / 8u) + c]; }

fn raw_value(head: u32, c: u32) -> Raw { return values[head * (N / 8u) + c]; }

// 8 dims of the row's own key and value.
fn write_own(head: u32, c: u32) {
    keys[head * (N / 8u) + c] = own8(2u * c);
    values[head * (N / 8u) + c] = own8(N / 4u + 2u * c);
}

fn eight_of(raw: Raw) -> Eight { return Eight(halves(raw.xy), halves(raw.zw)); }

fn scale_of(_raw: Raw, _c: u32) -> f32 { return 1.0; }

fn half_of(x: vec4f) -> Half { return vec2u(pack2x16float(x.xy), pack2x16float(x.zw)); }

fn rotate_own(_block: u32) {}

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw { return vec4u(own[i], own[i + 1u]); }

//# raw_f32: Reads 8 dims of a key or a value without conversion: float32.
// needs attention/eight: Eight
alias Half = vec4u;     // 4 dims

const RAW_WORDS = 8u;
const LAST_AGAIN = false;

struct Raw {
    low: Half,
    high: Half,
}

fn raw_key(head: u32, c: u32) -> Raw {
    let i = head * (N / 4u) + 2u * c;
    return Raw(keys[i], keys[i + 1u]);
}

fn raw_value(head: u32, c: u32) -> Raw {
    let i = head * (N / 4u) + 2u * c;
    return Raw(values[i], values[i + 1u]);
}

// 8 dims of the row's own key and value.
fn write_own(head: u32, c: u32) {
    let i = head * (N / 4u) + 2u * c;
    let key = own8(2u * c);
    let value = own8(N / 4u + 2u * c);
    keys[i] = key.low;
    keys[i + 1u] = key.high;
    values[i] = value.low;
    values[i + 1u] = value.high;
}

fn eight_of(raw: Raw) -> Eight { return Eight(bitcast<vec4f>(raw.low), bitcast<vec4f>(raw.high)); }

fn scale_of(_raw: Raw, _c: u32) -> f32 { return 1.0; }

fn half_of(x: vec4f) -> Half { return bitcast<vec4u>(x); }

fn rotate_own(_block: u32) {}

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw { return Raw(own[i], own[i + 1u]); }

//# read_f16: Keys and values as halves, two to a word: 8 dims are one load.
// needs attention/eight: Eight
fn key8(i: u32) -> Eight {
    let words = keys[i];
    return Eight(halves(words.xy), halves(words.zw));
}

fn value4(i: u32) -> vec4f {
    let words = values[i / 2u];
    return halves(select(words.xy, words.zw, i % 2u == 1u));
}

fn halves(words: vec2u) -> vec4f { return vec4f(unpack2x16float(words.x), unpack2x16float(words.y)); }

//# read_f32: Keys and values as float32.
// needs attention/eight: Eight
fn key8(i: u32) -> Eight { return Eight(bitcast<vec4f>(keys[2u * i]), bitcast<vec4f>(keys[2u * i + 1u])); }

fn value4(i: u32) -> vec4f { return bitcast<vec4f>(values[i]); }

//# words_of_four: Keys and values are read and written 16 bytes at a time.
alias CacheWord = vec4u;

//# words_of_one: Keys and values are read word by word: a head in blocks is not a multiple of 16 bytes.
// needs attention/cache/blocks: quants_at
alias CacheWord = u32;

// The quants of dims 8 c .. 8 c + 8 of a head. With one word, the second repeats the first.
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

//# words_of_two: Keys and values are read 8 bytes at a time: 8 dims of a head in bytes, whose words are an even number.
// needs attention/cache/blocks: quants_at
alias CacheWord = vec2u;

const_assert HEAD_WORDS % 2u == 0u && WORDS_8 == 2u;

// The quants of dims 8 c .. 8 c + 8 of a head.
fn key_quants(head: u32, c: u32) -> vec2u { return keys[quants_at(head, c) / 2u]; }

fn value_quants(head: u32, c: u32) -> vec2u { return values[quants_at(head, c) / 2u]; }

fn key_word(at: u32) -> u32 { return keys[at / 2u][at % 2u]; }

fn value_word(at: u32) -> u32 { return values[at / 2u][at % 2u]; }

//# write_f16: Keys and values as halves, two to a word.
fn put_key(i: u32, _t: u32, _head: u32, x: Eight) { keys[i] = packed(x); }

fn put_value(i: u32, _t: u32, _head: u32, x: Eight) { values[i] = packed(x); }

fn packed(x: Eight) -> vec4u {
    return vec4u(
        pack2x16float(x.low.xy), pack2x16float(x.low.zw),
        pack2x16float(x.high.xy), pack2x16float(x.high.zw),
    );
}

//# write_f32: Keys and values as float32.
fn put_key(i: u32, _t: u32, _head: u32, x: Eight) {
    keys[2u * i] = bitcast<vec4u>(x.low);
    keys[2u * i + 1u] = bitcast<vec4u>(x.high);
}

fn put_value(i: u32, _t: u32, _head: u32, x: Eight) {
    values[2u * i] = bitcast<vec4u>(x.low);
    values[2u * i + 1u] = bitcast<vec4u>(x.high);
}
