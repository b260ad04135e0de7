// Q8_0: weight = d · q.      x: 32 signed bytes per run; y: d as f16 per run
// needs formats/packed: half_of, in_order; words: word_at
const RUN = 32u;

struct Raw {
    low: vec4u,
    high: vec4u,
    y: u32,
}

fn run_raw(i: u32) -> Raw {
    return Raw(w[plane.x + 2u * i], w[plane.x + 2u * i + 1u], word_at(plane.y, i / 2u));
}

fn scale_of(raw: Raw, i: u32) -> vec2f { return vec2f(half_of(raw.y, i), 0.0); }

fn packed_of(raw: Raw, _i: u32) -> array<u32, 8> { return in_order(raw.low, raw.high); }
