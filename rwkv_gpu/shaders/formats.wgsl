// Functions that the formats share; float formats.

//# bf16: BF16: weight = q, the high half of a float.      x: 64 bytes per run, halves in pairs
const RUN = 32u;

fn floats(four: Four) -> vec4f {
    let first = four << vec2u(16u);
    let second = four & vec2u(0xffff0000u);
    return bitcast<vec4f>(vec4u(first.x, second.x, first.y, second.y));
}

//# codebook: Entries of a codebook, 16 bits each in a separate plane, and the conversion of their codes to weights.
// needs words: word_at
fn entry(table: u32, n: u32) -> u32 { return (word_at(table, n / 2u) >> (16u * (n % 2u))) & 0xffffu; }

// The 2-bit codes of an entry as bytes, four in each word.
fn eight_codes(entry: u32) -> vec2u {
    let nibbles = (vec2u(entry, entry >> 8u) | (vec2u(entry, entry >> 8u) << vec2u(12u))) & vec2u(0x000f000fu);
    return (nibbles | (nibbles << vec2u(6u))) & vec2u(0x03030303u);
}

// The 4-bit codes of an entry as bytes.
fn four_codes(entry: u32) -> u32 {
    let pairs = (entry | (entry << 8u)) & 0x00ff00ffu;
    return (pairs | (pairs << 4u)) & 0x0f0f0f0fu;
}

// Nonzero bytes with the signs that four bits give.
fn with_signs(bytes: u32, signs: u32) -> u32 {
    let negative = ((signs & 15u) * 0x00204081u) & 0x01010101u;
    return (bytes ^ (negative * 255u)) + negative;
}

// Seven signs and the eighth, which makes the number of negative ones even.
fn even_signs(seven: u32) -> u32 { return (seven & 127u) | ((countOneBits(seven & 127u) & 1u) << 7u); }

//# codebook_iq2: Eight weights of the IQ2 formats: codes 0, 1, 2 are 8, 25, 43.
// needs formats/codebook: eight_codes, entry, with_signs
fn eight_weights(table: u32, number: u32, signs: u32) -> vec2u {
    let codes = eight_codes(entry(table, number));
    let one = vec2u(0x01010101u);
    let sizes = 8u * one + 17u * (codes & one) + 35u * ((codes >> vec2u(1u)) & one);
    return vec2u(with_signs(sizes.x, signs), with_signs(sizes.y, signs >> 4u));
}

fn sixteenths(d: f32, s: u32) -> vec2f { return vec2f(d * (0.5 + f32(s)) * 0.25, 0.0); }

//# e2m1: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, of 4 bits each: sign, 2 bits of exponent, 1 of mantissa.
// Magnitudes have 4 bits as well: eight are computed together.
fn sizes(n: vec4u) -> vec4u {
    let one = vec4u(0x11111111u);
    let top = (n >> vec4u(2u)) & one;
    let bottom = (n >> vec4u(1u)) & one;
    let mantissa = (n & one) | ((top | bottom) << vec4u(1u));       // with its leading 1, unless it is subnormal
    let twice = mantissa + (mantissa & ((top << vec4u(1u)) | top));
    let both = top & bottom;
    return twice + (twice & ((both << vec4u(3u)) - both));
}

// Bytes of the low four bits of `size`, negated if bit 3 of the byte in `n` is set. No carry leaves a byte.
fn with_signs(size: vec4u, n: vec4u) -> vec4u {
    let negative = size & (((n >> vec4u(3u)) & vec4u(0x01010101u)) * 15u);
    return (((size & vec4u(0x0f0f0f0fu)) | vec4u(0x80808080u)) - (negative << vec4u(1u))) ^ vec4u(0x80808080u);
}

//# f16: F16: weight = q.      x: 64 bytes per run, halves in pairs
const RUN = 32u;

fn floats(four: Four) -> vec4f { return vec4f(unpack2x16float(four.x), unpack2x16float(four.y)); }

//# f32: F32: weight = q.      x: 128 bytes per run
const RUN = 32u;

struct Raw {
    x: array<vec4u, 8>,
}

alias Four = vec4u;

fn run_raw(i: u32) -> Raw {
    let at = plane.x + i * 8u;
    return Raw(array<vec4u, 8>(
        w[at], w[at + 1u], w[at + 2u], w[at + 3u], w[at + 4u], w[at + 5u], w[at + 6u], w[at + 7u],
    ));
}

fn scale_of(_raw: Raw, _i: u32) -> vec2f { return vec2f(1.0, 0.0); }

fn fours_of(raw: Raw, _i: u32) -> array<Four, RUN / 4u> {
    var x = raw.x;
    var fours: array<Four, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        fours[j] = x[j];
    }
    return fours;
}

fn floats(four: Four) -> vec4f { return bitcast<vec4f>(four); }

//# fifths: The fifth bits of a run of 32 in a word: bit k of byte b belongs to n[4k+b].
fn low_fifths(h: u32) -> vec4u { return vec4u(h << 4u, h << 3u, h << 2u, h << 1u) & vec4u(0x10101010u); }

fn high_fifths(h: u32) -> vec4u { return vec4u(h, h >> 1u, h >> 2u, h >> 3u) & vec4u(0x10101010u); }

//# halves: Common functions of formats with two bytes per weight: no scale; four weights are two words of a run's vec4s.
struct Raw {
    x: array<vec4u, 4>,
}

alias Four = vec2u;

fn run_raw(i: u32) -> Raw {
    let at = plane.x + i * 4u;
    return Raw(array<vec4u, 4>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]));
}

fn scale_of(_raw: Raw, _i: u32) -> vec2f { return vec2f(1.0, 0.0); }

fn fours_of(raw: Raw, _i: u32) -> array<Four, RUN / 4u> {
    let x = raw.x;
    return array<Four, RUN / 4u>(x[0].xy, x[0].zw, x[1].xy, x[1].zw, x[2].xy, x[2].zw, x[3].xy, x[3].zw);
}

//# nibbles: Runs of 32 by 16 bytes, byte j = n[j] | n[j+16] << 4.
fn low_nibbles(v: vec4u) -> vec4u { return v & vec4u(0x0f0f0f0fu); }        // n[0] .. n[15]

fn high_nibbles(v: vec4u) -> vec4u { return (v >> vec4u(4u)) & vec4u(0x0f0f0f0fu); }    // n[16] .. n[31]

//# packed
// Common functions of quantised formats: the q of a run as bytes, four per word, and small pieces of a plane by number.
// needs format: packed_of, run_raw
alias Four = u32;

fn fours_of(raw: Raw, i: u32) -> array<Four, RUN / 4u> {
    var packed = packed_of(raw, i);
    var fours: array<Four, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        fours[j] = packed[j];
    }
    return fours;
}

fn run_packed(i: u32) -> array<u32, RUN / 4u> {
    var fours = fours_of(run_raw(i), i);
    var packed: array<u32, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        packed[j] = fours[j];
    }
    return packed;
}

fn in_order(low: vec4u, high: vec4u) -> array<u32, 8> {
    return array<u32, 8>(low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
}

// Half n of a plane, from its word n / 2, and byte n from its word n / 4.
fn half_of(word: u32, n: u32) -> f32 { return unpack2x16float(word)[n % 2u]; }

fn byte_of(word: u32, n: u32) -> u32 { return (word >> (8u * (n % 4u))) & 0xffu; }

//# runs: A run by its number, loaded and decoded at once: (d, m), and the q as floats.
// needs format: floats, fours_of, run_raw, scale_of
fn run_scale(i: u32) -> vec2f { return scale_of(run_raw(i), i); }

fn run_quants(i: u32) -> array<vec4f, RUN / 4u> {
    var fours = fours_of(run_raw(i), i);
    var q: array<vec4f, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        q[j] = floats(fours[j]);
    }
    return q;
}

//# scales_k
// (d · s, -dmin · m) of run r of a superblock of 8, from 4 words: d | dmin as f16, then words whose nibble r is of
// run r: low bits of s, low bits of m, high bits of s | those of m << 2.
fn scale_and_min(header: vec4u, r: u32) -> vec2f {
    let d = unpack2x16float(header.x);
    let v = header.yzw >> vec3u(4u * r);
    let s = (v.x & 15u) | ((v.z & 3u) << 4u);
    let m = (v.y & 15u) | ((v.z & 12u) << 2u);
    return vec2f(d.x * f32(s), -d.y * f32(m));
}

//# signed: Bytes with a sign to floats.
fn floats(four: Four) -> vec4f { return vec4f(unpack4xI8(four)); }

//# table_iq4
// table[n] in each byte, by its low nibble n. It is computed bit by bit for four weights at a time, as a table in
// memory would be slower.
fn table_iq4(n: vec4u) -> vec4u {
    let b0 = filled(n);
    let b1 = filled(n >> vec4u(1u));
    let b2 = filled(n >> vec4u(2u));
    let b3 = filled(n >> vec4u(3u));
    let first = bitwise(b1, of_two(b0, 0x81u, 0x98u), of_two(b0, 0xadu, 0xbfu));    // -127, -104, -83, -65
    let second = bitwise(b1, of_two(b0, 0xcfu, 0xddu), of_two(b0, 0xeau, 0xf6u));   // -49, -35, -22, -10
    let third = bitwise(b1, of_two(b0, 0x01u, 0x0du), of_two(b0, 0x19u, 0x26u));    // 1, 13, 25, 38
    let fourth = bitwise(b1, of_two(b0, 0x35u, 0x45u), of_two(b0, 0x59u, 0x71u));   // 53, 69, 89, 113
    return bitwise(b3, bitwise(b2, first, second), bitwise(b2, third, fourth));
}

// copies the lowest bit of each byte to all bits of the byte
fn filled(v: vec4u) -> vec4u {
    let bit = v & vec4u(0x01010101u);
    return (bit << vec4u(8u)) - bit;
}

fn of_two(bit: vec4u, zero: u32, one: u32) -> vec4u {
    return vec4u(zero * 0x01010101u) ^ (bit & vec4u((zero ^ one) * 0x01010101u));
}

fn bitwise(bit: vec4u, zero: vec4u, one: vec4u) -> vec4u { return zero ^ (bit & (zero ^ one)); }

//# unsigned
// Converts unsigned bytes to floats: one instruction each on GPUs that can select a byte of a word. A value with an
// offset, d · (n - middle), becomes d · n + m with an exact m.
fn centred(d: f32, middle: f32) -> vec2f { return vec2f(d, -middle * d); }

fn floats(four: Four) -> vec4f {
    return vec4f(f32(four & 255u), f32((four >> 8u) & 255u), f32((four >> 16u) & 255u), f32(four >> 24u));
}

//# vec4s: Word n of a plane, selected from its vec4.
fn word_at(start: u32, n: u32) -> u32 { return w[start + n / 4u][n % 4u]; }

//# words: Word n of a plane, from the binding of W as words, without a selection from a vec4.
@group(0) @binding(15) var<storage, read> words: array<u32>;

fn word_at(start: u32, n: u32) -> u32 { return words[4u * start + n]; }
