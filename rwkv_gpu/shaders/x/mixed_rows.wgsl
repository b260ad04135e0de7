// ROWS rows x, each of a sequence of its own, normed and mixed with the row before it while they are read:
// xx + (previous - xx) · mix, xx = layer_norm(x), previous = layer_norm(what the state holds), or 0 for a fresh sequence
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [ROWS, D / 4]
@group(0) @binding(7) var<storage, read> gain: array<vec4f>;    // [D / 4]
@group(0) @binding(8) var<storage, read> shift: array<vec4f>;   // [D / 4]
@group(0) @binding(9) var<storage, read> mix: array<vec4f>;     // [n, D / 4]
@group(0) @binding(10) var<storage, read> before: array<vec4f>; // [states, D / 4]
@group(0) @binding(11) var<storage, read> segment: array<Segment>;  // [ROWS]

const MINE = (D4 + WG - 1u) / WG;       // vec4s of a row for a lane

var<private> centre: array<vec4f, TB>;      // of each row of a workgroup, mean of x and of the row before it, and their scales

// `start` says which row of `mix` it is for, and which row of x: as if rows that were mixed lay there.
fn x4(start: u32, k: u32, _width: u32) -> vec4f {
    let d = k / 4u;
    let t = start / D % ROWS;
    var own = centre[0];
    for (var other = 1u; other < TB; other++) {
        own = select(own, centre[other], t == first_row + other);
    }
    let here = (x[t * D4 + d] - own.x) * own.z * gain[d] + shift[d];
    let there = (earlier(t, d) - own.y) * own.w * gain[d] + shift[d];
    return here + (select(there, vec4f(), segment[t].start == 0u) - here) * mix[start / (D * ROWS) * D4 + d];
}

fn earlier(t: u32, d: u32) -> vec4f { return before[segment[t].source * D4 + d]; }

// Finds mean and deviation of a workgroup's rows: by subgroup, then over all.
fn look(lane: u32) {
    let crew = lane / SUBGROUP;
    var means: array<vec2f, TB>;
    for (var own = 0u; own < TB; own++) {
        let t = min(first_row + own, ROWS - 1u);
        var sums = vec2f();
        for (var d = lane; d < D4; d += WG) {
            sums += vec2f(total(x[t * D4 + d]), total(earlier(t, d)));
        }
        means[own] = together(sums, SUBGROUP) / max(1.0, count_of(crew));
    }
    for (var own = 0u; own < TB; own++) {
        let t = min(first_row + own, ROWS - 1u);
        var squares = vec2f();
        for (var d = lane; d < D4; d += WG) {
            let here = x[t * D4 + d] - means[own].x;
            let there = earlier(t, d) - means[own].y;
            squares += vec2f(dot(here, here), dot(there, there));
        }
        squares = together(squares, SUBGROUP);
        if lane % SUBGROUP == 0u {
            partial_moments[own * CREWS + crew] = Moments(means[own], squares);
        }
    }
    workgroupBarrier();
    for (var own = 0u; own < TB; own++) {
        centre[own] = met(own, lane);
    }
}
