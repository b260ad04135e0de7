// y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, xx = layer_norm(x)      one workgroup per row t, which norms both its rows
// needs lanes: reduce_add, reduce_add2; lib/step: apart, kept_state; output: begin, put
@group(0) @binding(1) var<storage, read> x: array<vec4f>;               // [T, D / 4]
@group(0) @binding(2) var<storage, read> weight: array<vec4f>;          // [D / 4]
@group(0) @binding(3) var<storage, read> bias: array<vec4f>;            // [D / 4]
@group(0) @binding(4) var<storage, read> mix: array<vec4f>;             // [MIXES, D / 4]
@group(0) @binding(5) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(6) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(7) var<storage, read_write> state: array<vec4f>;     // [states, D / 4], xx of the row before the first
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [MIXES, T, D / 4], a stack; with ROWS, xx[t] and xx[t - 1] follow

const_assert D % 4u == 0u;
const D4 = D / 4u;
const MINE = (D4 + WG - 1u) / WG;     // vec4s of a row per lane
const KEPT = MINE <= 4u;            // true if values stay in registers; otherwise they are read again
const PRELOADED = MINE == 1u;           // true if the factors of the rows are loaded during the norm

struct Rows {
    t: u32,
    source: u32,
    first: bool,
}

struct Both {
    here: vec4f,    // a vec4 of x[t]
    there: vec4f,   // the same vec4 of the previous row
}

struct Norm {
    mean: vec2f,    // the means of both rows
    scale: vec2f,
    first: bool,    // true if the previous row is a state, which is already normed
    fresh: bool,    // true if the sequence has no previous row; zeros replace it
}

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var owner = t;                      // with one row per sequence, row t belongs to segment t
    if step.segments != step.rows {
        owner = row_segment[t];
    }
    let segment = segments[owner];
    let first = t == segment.first;
    let source = segment.source * D4;
    let replaced = segment.written * D4;

    let rows = Rows(t, source, first);
    var kept: array<Both, min(MINE, 4u)>;
    var gain = vec4f();
    var shift = vec4f();
    var mixes: array<vec4f, MIXES>;
    if PRELOADED && lane < D4 {
        gain = weight[lane];
        shift = bias[lane];
        for (var m = 0u; m < MIXES; m++) {
            mixes[m] = mix[m * D4 + lane];
        }
    }
    var sums = vec2f();                 // the sums of x[t] and of the previous row
    for (var i = 0u; i < MINE; i++) {
        let both = load(rows, i, lane);
        if KEPT {
            kept[i] = both;
        }
        sums += vec2f(total(both.here), total(both.there));
    }
    let mean = reduce_add2(sums, lane) / f32(D);
    var squares = vec2f();
    for (var i = 0u; i < MINE; i++) {
        var both = kept[i % 4u];
        if !KEPT {
            both = load(rows, i, lane);
        }
        if i * WG + lane < D4 {
            squares += vec2f(total(pow2(both.here - mean.x)), total(pow2(both.there - mean.y)));
        }
    }
    let scale = inverseSqrt(reduce_add2(squares, lane) / f32(D) + EPS);

    // Only the workgroup of the first row touches the states: each lane reads its own elements, then replaces them.
    // Therefore this workgroup also norms the last row.
    let fresh = first && segment.start == 0u;
    let last = t + segment.count - 1u;
    var own = vec2f(mean.x, scale.x);   // mean and scale of the last row
    if first && segment.count > 1u {
        own = moments(last, lane);
    }
    let norm = Norm(mean, scale, first, fresh);
    var most = 0.0;                     // the largest magnitude in all mixes of the row
    for (var i = 0u; ROUNDS && i < MINE; i++) {
        let d = i * WG + lane;
        if d < D4 {
            var both = kept[i % 4u];
            if !KEPT {
                both = load(rows, i, lane);
            }
            both = normed(both, norm, weight[d], bias[d]);
            for (var m = 0u; m < MIXES; m++) {
                let sizes = abs(both.here + both.there * mix[m * D4 + d]);
                most = max(most, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
            }
        }
    }
    begin(most, t, lane);
    for (var i = 0u; i < MINE; i++) {
        let d = i * WG + lane;
        if d >= D4 {
            break;
        }
        var both = kept[i % 4u];
        if !KEPT {
            both = load(rows, i, lane);
        }
        if !PRELOADED {
            gain = weight[d];
            shift = bias[d];
        }
        both = normed(both, norm, gain, shift);
        let xx = both.here;
        for (var m = 0u; m < MIXES; m++) {
            if !PRELOADED {
                mixes[m] = mix[m * D4 + d];
            }
            y[m * apart(D4) + t * D4 + d] = xx + both.there * mixes[m];
        }
        if ROWS != 0u {
            y[MIXES * apart(D4) + t * D4 + d] = xx;
            y[(MIXES + 1u) * apart(D4) + t * D4 + d] = xx + both.there;
        }
        put(xx, both.there, t, d);
        if t - segment.first < segment.kept {
            state[kept_state(segment, t - segment.first) * D4 + d] = xx;
        }
        if first {
            state[replaced + d] = (x[last * D4 + d] - own.x) * own.y * gain + shift;
        }
    }
}

// The normed row, and the difference of the previous normed row.
fn normed(both: Both, norm: Norm, gain: vec4f, shift: vec4f) -> Both {
    let xx = (both.here - norm.mean.x) * norm.scale.x * gain + shift;
    let before = select((both.there - norm.mean.y) * norm.scale.y * gain + shift, both.there, norm.first);
    return Both(xx, select(before, vec4f(), norm.fresh) - xx);
}

fn moments(t: u32, lane: u32) -> vec2f {
    var sum = 0.0;
    for (var d = lane; d < D4; d += WG) {
        sum += total(x[t * D4 + d]);
    }
    let mean = reduce_add(sum, lane) / f32(D);
    var squares = 0.0;
    for (var d = lane; d < D4; d += WG) {
        squares += total(pow2(x[t * D4 + d] - mean));
    }
    return vec2f(mean, inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS));
}

// A lane's part of both rows; zeros beyond their end.
fn load(rows: Rows, i: u32, lane: u32) -> Both {
    let d = i * WG + lane;
    if d >= D4 {
        return Both();
    }
    return Both(x[rows.t * D4 + d], before(rows.t, rows.first, rows.source, d));
}

fn before(t: u32, first: bool, source: u32, d: u32) -> vec4f {
    if first {
        return state[source + d];
    }
    return x[(t - 1u) * D4 + d];
}

fn pow2(v: vec4f) -> vec4f { return v * v; }

fn total(v: vec4f) -> f32 { return dot(v, vec4f(1.0)); }
