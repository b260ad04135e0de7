// What formats of two bytes share: no scale, and four weights are two words of a run's vec4s.
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
