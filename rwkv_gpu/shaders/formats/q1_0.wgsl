// Q1_0: weight = d · (2 n - 1).      x: a word per run, bit l = n[l]; y: d as f16 per four runs
// needs formats/packed: half_of; formats/unsigned: centred; words: word_at
const RUN = 32u;

struct Raw {
    x: u32,
    y: u32,
}

fn run_raw(i: u32) -> Raw { return Raw(word_at(plane.x, i), word_at(plane.y, i / 8u)); }

fn scale_of(raw: Raw, i: u32) -> vec2f { return centred(2.0 * half_of(raw.y, i / 4u), 0.5); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> {
    var n: array<u32, 8>;
    for (var j = 0u; j < 8u; j++) {
        n[j] = (((raw.x >> (4u * j)) & 15u) * 0x00204081u) & 0x01010101u;
    }
    return n;
}
