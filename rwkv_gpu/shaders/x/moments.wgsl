// The mean of a row of D values and of the row before it, and what their deviations are the inverse of: by subgroup, then over all.
const D4 = D / 4u;
const CREWS = WG / SUBGROUP;
const MEET = min(SUBGROUP, 1u << (32u - countLeadingZeros(CREWS - 1u)));     // lanes that put together what subgroups have found

const_assert D % 4u == 0u;

var<workgroup> partial_moments: array<Moments, CREWS * TB>;

// What a subgroup finds of a row and of the row before it.
struct Moments {
    mean: vec2f,
    squares: vec2f,                     // sums of squared differences from it
}

// What subgroups have found of a row of the workgroup: both means, and both scales.
fn met(row: u32, lane: u32) -> vec4f {
    var sums = vec2f();
    for (var c = lane % MEET; c < CREWS; c += MEET) {
        sums += partial_moments[row * CREWS + c].mean * count_of(c);
    }
    let mean = together(sums, MEET) / f32(D);
    var squares = vec2f();
    for (var c = lane % MEET; c < CREWS; c += MEET) {
        let apart = partial_moments[row * CREWS + c].mean - mean;
        squares += partial_moments[row * CREWS + c].squares + apart * apart * count_of(c);
    }
    return vec4f(mean, scale_by(together(squares, MEET)));
}

fn scale_by(squares: vec2f) -> vec2f { return inverseSqrt(squares / f32(D) + EPS); }

fn together(v: vec2f, width: u32) -> vec2f { return vec2f(reach_add(v.x, width), reach_add(v.y, width)); }

// How many values of a row the lanes of a subgroup have.
fn count_of(crew: u32) -> f32 {
    var count = 0u;
    for (var first = crew * SUBGROUP; first < D4; first += WG) {
        count += min(SUBGROUP, D4 - first);
    }
    return f32(4u * count);
}

fn total(v: vec4f) -> f32 { return (v.x + v.y) + (v.z + v.w); }
