// F32: weight = q.      x: 128 bytes a run
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
