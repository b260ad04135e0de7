// F16: weight = q.      x: 64 bytes a run, halves in pairs
const RUN = 32u;

struct Raw {
    x: array<vec4u, 4>,
}

alias Four = vec2u;

fn run_raw(i: u32) -> Raw {
    let at = plane.x + i * 4u;
    return Raw(array<vec4u, 4>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]));
}

fn scale_of(_raw: Raw, _i: u32) -> vec2f { return vec2f(1.0, 0.0); }

fn fours_of(raw: Raw, _i: u32) -> array<Four, RUN / 4u> { return in_pairs(raw.x); }

fn floats(four: Four) -> vec4f { return vec4f(unpack2x16float(four.x), unpack2x16float(four.y)); }
