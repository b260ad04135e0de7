// The row x of a step that has no other, normed and mixed with the row before it while it is read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous = layer_norm(what the state holds), or 0 for a fresh sequence
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> before: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<uniform> segment: Segment;

const D4 = D / 4u;
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row for a lane
const CREWS = WG / SUBGROUP;
const MEET = min(CREWS, SUBGROUP);     // lanes that put together what subgroups have found

const_assert D % 4u == 0u;
const_assert ((MEET & (MEET - 1u)) == 0u);

// Of a part of x and of the row before it.
struct Moments {
    mean: vec2f,
    squares: vec2f,                     // sums of squared differences from it
}

struct Loaded {
    here: vec4f,
    there: vec4f,
    gain: vec4f,
    shift: vec4f,
    mix: vec4f,
}

var<workgroup> partial_moments: array<Moments, CREWS>;
var<private> centre: vec2f;
var<private> scale: vec2f;

fn x4(start: u32, k: u32, _width: u32) -> Loaded {
    let d = k / 4u;
    return Loaded(x[d], before[segment.source * D4 + d], gain[d], shift[d], mix[start / 4u + d]);
}

fn found(loaded: Loaded) -> vec4f {
    let here = (loaded.here - centre.x) * scale.x * loaded.gain + loaded.shift;
    let there = (loaded.there - centre.y) * scale.y * loaded.gain + loaded.shift;
    return here + (select(there, vec4f(), segment.start == 0u) - here) * loaded.mix;
}

// Finds mean and deviation of both rows: by lane, by subgroup, and over all.
fn look(lane: u32) {
    var own: Moments;
    var count = 0.0;
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            let here = x[d];
            let there = before[segment.source * D4 + d];
            let mean = vec2f(total(here), total(there)) * 0.25;
            let apart = mean - own.mean;
            count += 4.0;
            own.mean += apart * (4.0 / count);
            own.squares += vec2f(total(pow2(here - mean.x)), total(pow2(there - mean.y)));
            own.squares += apart * apart * (4.0 - 16.0 / count);
        }
    }
    own = joined(own, count, count_of(lane / SUBGROUP), SUBGROUP);
    if CREWS > 1u {
        if lane % SUBGROUP == 0u {
            partial_moments[lane / SUBGROUP] = own;
        }
        workgroupBarrier();
        own = met(lane % MEET);
    }
    centre = own.mean;
    scale = inverseSqrt(own.squares / f32(D) + EPS);
}

// Of `width` lanes, each of which has so many values of `all`.
fn joined(own: Moments, count: f32, all: f32, width: u32) -> Moments {
    let part = own.mean * (count / max(all, 1.0));
    let mean = vec2f(reach_add(part.x, width), reach_add(part.y, width));
    let apart = own.mean - mean;
    let squares = own.squares + apart * apart * count;
    return Moments(mean, vec2f(reach_add(squares.x, width), reach_add(squares.y, width)));
}

// Of all subgroups, every one of MEET lanes taking its share of them.
fn met(line: u32) -> Moments {
    var own: Moments;
    var count = 0.0;
    for (var g = line; g < CREWS; g += MEET) {
        let other = partial_moments[g];
        let more = count_of(g);
        let apart = other.mean - own.mean;
        count += more;
        own.mean += apart * (more / max(count, 1.0));
        own.squares += other.squares + apart * apart * (more * (count - more) / max(count, 1.0));
    }
    return joined(own, count, f32(D), MEET);
}

// How many values of a row the lanes of a subgroup have.
fn count_of(group: u32) -> f32 {
    var count = 0u;
    for (var i = 0u; i < MINE; i++) {
        let first = i * WG + group * SUBGROUP;
        count += 4u * (min(first + SUBGROUP, D4) - min(first, D4));
    }
    return f32(count);
}

fn pow2(v: vec4f) -> vec4f { return v * v; }
fn total(v: vec4f) -> f32 { return (v.x + v.y) + (v.z + v.w); }
