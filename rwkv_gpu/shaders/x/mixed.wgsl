// The row x of a step that has no other, normed and mixed with the row before it while it is read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous = layer_norm(what the state holds), or 0 for a fresh sequence
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> before: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<uniform> segment: Segment;

const READY = false;                    // x is not to be read before the look at it
const D4 = D / 4u;
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row for a lane
const KEPT = MINE <= 5u;                // whether it keeps both rows in registers while their mean is found
const CREWS = WG / SUBGROUP;
const MEET = min(SUBGROUP, 1u << (32u - countLeadingZeros(CREWS - 1u)));     // lanes that put together what subgroups have found

const_assert D % 4u == 0u;

var<workgroup> partial_moments: array<Moments, CREWS>;
var<private> centre: vec2f;             // mean of x, and of the row before it
var<private> scale: vec2f;

struct Both {
    here: vec4f,                        // of x
    there: vec4f,                       // of the row before it
}

// What a subgroup finds.
struct Moments {
    mean: vec2f,
    squares: vec2f,                     // sums of squared differences from it
}

fn x4(start: u32, k: u32, _width: u32) -> vec4f {
    let d = k / 4u;
    let here = (x[d] - centre.x) * scale.x * gain[d] + shift[d];
    let there = (earlier(d) - centre.y) * scale.y * gain[d] + shift[d];
    return here + (select(there, vec4f(), segment.start == 0u) - here) * mix[start / 4u + d];
}

fn earlier(d: u32) -> vec4f { return before[segment.source * D4 + d]; }

// Finds mean and deviation of both rows: by subgroup, then over all.
fn look(lane: u32) {
    let crew = lane / SUBGROUP;
    var kept: array<Both, min(MINE, 5u)>;
    var sums = vec2f();
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            let both = Both(x[d], earlier(d));
            if KEPT {
                kept[i] = both;
            }
            sums += vec2f(total(both.here), total(both.there));
        }
    }
    var mean = together(sums, SUBGROUP) / max(1.0, count_of(crew));
    var squares = vec2f();
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            var both = kept[i % 5u];
            if !KEPT {
                both = Both(x[d], earlier(d));
            }
            let here = both.here - mean.x;
            let there = both.there - mean.y;
            squares += vec2f(dot(here, here), dot(there, there));
        }
    }
    squares = together(squares, SUBGROUP);
    if CREWS > 1u {
        if lane % SUBGROUP == 0u {
            partial_moments[crew] = Moments(mean, squares);
        }
        workgroupBarrier();
        sums = vec2f();
        for (var c = lane % MEET; c < CREWS; c += MEET) {
            sums += partial_moments[c].mean * count_of(c);
        }
        mean = together(sums, MEET) / f32(D);
        squares = vec2f();
        for (var c = lane % MEET; c < CREWS; c += MEET) {
            let apart = partial_moments[c].mean - mean;
            squares += partial_moments[c].squares + apart * apart * count_of(c);
        }
        squares = together(squares, MEET);
    }
    centre = mean;
    scale = inverseSqrt(squares / f32(D) + EPS);
}

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
