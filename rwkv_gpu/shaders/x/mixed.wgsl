// The row x of a step that has no other, normed and mixed with the row before it while it is read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous = layer_norm(what the state holds), or 0 for a fresh sequence
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> before: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<uniform> segment: Segment;

const READY = false;                    // x is not to be read before the look at it
const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row for a lane
const KEPT = MINE <= 5u;                // whether it keeps both rows in registers while their mean is found

var<private> centre: vec2f;             // mean of x, and of the row before it
var<private> scale: vec2f;

struct Both {
    here: vec4f,                        // of x
    there: vec4f,                       // of the row before it
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
    let mean = together(sums, SUBGROUP) / max(1.0, count_of(crew));
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
        let all = met(0u, lane);
        centre = all.xy;
        scale = all.zw;
    } else {
        centre = mean;
        scale = scale_by(squares);
    }
}
