// Parts of attention: queries and keys, blocks of rows, scores and results.

//# block: The queries of a workgroup: neighbouring rows, or heads of rows, of one sequence.
struct Block {
    first: u32,     // the first query, counted over all queries
    count: u32,
    position: u32,  // the position of the first query's row in its sequence
    segment: u32,
}

//# blocks: Rows of a step in blocks of up to ROWS, each of one sequence.
// needs attention/blocks_of_segments: nth_block
fn block_of(index: u32) -> Block { return nth_block(index, 1u, ROWS); }

//# blocks_of_segments: The queries of a step in blocks of up to `size`, each of one sequence; a row has `heads` of them.
// needs attention/block: Block
fn nth_block(index: u32, heads: u32, size: u32) -> Block {
    var found = Block();    // a single return: FXC refuses barriers that depend on a function with two returns
    var left = index;
    for (var s = 0u; s < step.segments; s++) {
        let segment = segments[s];
        let queries = segment.count * heads;
        let blocks = (queries + size - 1u) / size;
        if left < blocks {
            let done = left * size;
            found = Block(segment.first * heads + done, min(size, queries - done), segment.start + done / heads, s);
            break;
        }
        left -= blocks;
    }
    return found;
}

// The end of the positions of a sequence after this step.
fn end_of(segment: u32) -> u32 { return segments[segment].start + segments[segment].count; }

//# eight: 8 dims of a head.
struct Eight {
    low: vec4f,
    high: vec4f,
}

//# every_run
// All runs have results, because the context is split in the same way for all rows of a workgroup.
fn runs_of(_position: u32) -> u32 { return RUNS; }

//# meeting/subgroup
// Lanes of a subgroup meet independently of other subgroups; `lib/matrix_units/subgroup_barrier` says where that works.
fn meet() { subgroupBarrier(); }

// Whether `own` is true in a lane of the subgroup.
fn any_of(own: bool, _time: u32) -> bool { return subgroupAny(own); }

//# meeting/workgroup: Subgroups meet together.
// Padded to 16 bytes, because fragments that follow must start at multiples of 16.
var<workgroup> last_time: vec4u;

fn meet() { workgroupBarrier(); }

// Whether `own` is true in a lane of the workgroup; each call has another `time`.
fn any_of(own: bool, time: u32) -> bool {
    if own {
        last_time = vec4u(time);
    }
    return workgroupUniformLoad(&last_time).x == time;
}

//# partition
// Splits the context of a row into equal runs of a multiple of GRAIN positions. Up to ONE_RUN positions form a single run.
// needs reach: first_seen; run count: most_runs
struct Cut {
    start: u32,
    end: u32,   // the end of the positions; at least `start`
}

// Run `number` of the context of rows at positions `first` to `last`.
fn cut_of(first: u32, last: u32, number: u32) -> Cut {
    let seen = first_seen(first);
    let base = seen / GRAIN * GRAIN;
    let size = run_size(last + 1u - base);
    return Cut(max(seen, base + number * size), min(last + 1u, base + (number + 1u) * size));
}

fn run_size(length: u32) -> u32 {
    let runs = most_runs(length);
    let each = (length + runs * GRAIN - 1u) / (runs * GRAIN) * GRAIN;
    return select(each, ONE_RUN, length <= ONE_RUN);
}

// The number of runs at a position.
fn runs_of(position: u32) -> u32 {
    let length = position + 1u - first_seen(position) / GRAIN * GRAIN;
    let size = run_size(length);
    return (length + size - 1u) / size;
}

//# turns: The rotation of each pair of a head, by position.
@group(0) @binding(3) var<storage, read> turns: array<vec2f>;           // (cos, sin) [PAGE + pages, DIMS / 2]

// The rotation by a position combines that of the page's first position with that of the place in the page. Both are
// exact.
fn turn_of(position: u32, pair: u32) -> vec2f {
    let a = turns[position % PAGE * (DIMS / 2u) + pair];
    let b = turns[(PAGE + position / PAGE) * (DIMS / 2u) + pair];
    return vec2f(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

//# vectors: Float32 parameters of a layer's heads, one after the other: the norms of q and k [2, N], then the sinks [H].
@group(0) @binding(2) var<storage, read> vectors: array<f32>;

//# answer/floats: The result is written as floats.
fn answer(i: u32, value: vec4f) { y[i] = value; }

//# answer/rounded: The result is also written as float16.
// needs lib/matrix_units/in_units: in_units; lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(13) var<storage, read_write> rounded: array<vec2u>;   // in the layout of round_rows, without exponents

fn answer(i: u32, value: vec4f) {
    y[i] = value;
    rounded[place_of_four(i / (H * N4), i % (H * N4), H * N4)] = halves_of(in_units(value));
}

//# gate/each: Each number of the result is multiplied by its own gate.
@group(0) @binding(12) var<storage, read> gates: array<vec4f>;          // [T, H, N / 4]

fn gated(y: vec4f, i: u32) -> vec4f { return gates[i] * y; }

//# gate/none: The result has no gate.
fn gated(y: vec4f, _i: u32) -> vec4f { return y; }

//# logit/alibi
// ALiBi: scores lose the slope of the head for each position between query and key. The first SLOPES heads have powers of
// 2^-SLOPE_STEP as slopes, and the others the values in between.
// needs kernel: Scores
fn logits_of(scores: Scores, heads: Scores, distances: Scores) -> Scores {
    let steps = select(heads - SLOPES + 0.5, heads + 1.0, heads < Scores(SLOPES));
    return scores - SLOPE_UNIT * exp2(-SLOPE_STEP * steps) * abs(distances);
}

//# logit/capped
// Scores stay within CAP: CAP · tanh(score / CAP). The argument is limited to 10, where tanh is 1 in float32, as some
// drivers' tanh overflows past 44.
// needs kernel: Scores
fn logits_of(scores: Scores, _heads: Scores, _distances: Scores) -> Scores {
    return CAP * tanh(clamp(scores / CAP, Scores(-10.0), Scores(10.0)));
}

//# logit/plain: Scores are not changed.
fn logits_of(scores: Scores, _heads: Scores, _distances: Scores) -> Scores { return scores; }

//# logit/relative
// Scores gain a bias of the head by the position of the key relative to the query. All keys that are MAX_APART
// positions away or more have the same bias.
// needs kernel: Scores
@group(0) @binding(11) var<storage, read> biases: array<f32>;           // [H, 2 MAX_APART + 1]

fn logits_of(scores: Scores, heads: Scores, distances: Scores) -> Scores {
    let places = heads * (2.0 * MAX_APART + 1.0) + MAX_APART - clamp(distances, Scores(-MAX_APART), Scores(MAX_APART));
    let i = vec4u(places);
    return scores + vec4f(biases[i.x], biases[i.y], biases[i.z], biases[i.w]);
}

//# query_scale/constant: Every query has the same scale.
fn query_scale(_position: u32) -> f32 { return SCALE; }

//# query_scale/late: Queries of positions beyond START have a larger scale: times ln(position) / ln(START).
fn query_scale(position: u32) -> f32 { return SCALE * (log(f32(max(position, START))) / log(f32(START))); }

//# query_scale/temperature
// Queries of late positions have a larger scale: times 1 + TEMPERATURE · ln(1 + floor((position + SHIFT) / PERIOD)).
fn query_scale(position: u32) -> f32 {
    return SCALE * (1.0 + TEMPERATURE * log(1.0 + f32((position + SHIFT) / PERIOD)));
}

//# rope/neox: Pairs are (i, i + DIMS / 2).
fn pair_of(d: u32) -> u32 { return d % (DIMS / 2u); }
fn partner_of(d: u32) -> u32 { return select(d - DIMS / 2u, d + DIMS / 2u, d < DIMS / 2u); }
fn is_second(d: u32) -> bool { return d >= DIMS / 2u; }

//# rope/none: No rotation: DIMS is 0.
fn pair_of(d: u32) -> u32 { return d; }
fn partner_of(d: u32) -> u32 { return d; }
fn is_second(_d: u32) -> bool { return false; }
fn turn_of(_position: u32, _pair: u32) -> vec2f { return vec2f(1.0, 0.0); }

//# rope/normal: Pairs are neighbours: (2i, 2i + 1).
fn pair_of(d: u32) -> u32 { return d / 2u; }
fn partner_of(d: u32) -> u32 { return d ^ 1u; }
fn is_second(d: u32) -> bool { return d % 2u == 1u; }

//# sink/logit
// An extra score per head without a value: its exponential is added to the sum. It is in `vectors` from SINKS on.
fn sink_of(head: u32, top: f32) -> f32 { return exp(min(vectors[SINKS + head % H] - top, 80.0)); }

//# sink/none: The softmax is over the positions only.
fn sink_of(_head: u32, _top: f32) -> f32 { return 0.0; }

//# source/cached: Another layer has written the keys and values. This layer has only queries.
const OWN_KEYS = false;

//# source/own: The layer has keys and values of its own, and writes them to their pages.
const OWN_KEYS = true;

//# value_norm/none: Values are written to their pages without a norm.
fn value_scale(_start: u32) -> f32 { return 1.0; }

//# value_norm/unit: Values are normed by head, without weights.
// needs attention/heads: squares_from
fn value_scale(start: u32) -> f32 { return inverseSqrt(squares_from(start) / f32(HEAD) + EPS); }

//# soften: The running softmax of Q queries. Their scores with KEYS positions are in workgroup memory; lanes have 4 scores each.
// needs kernel: put_top, put_total, top_at, total_at
const LOWEST = -1e38;                       // the score of a masked position

var<workgroup> weights: array<vec4f, KEYS * Q4>;    // scores, then their exponentials
var<workgroup> most: array<vec4f, Q4>;              // the largest score so far
var<workgroup> sums: array<vec4f, Q4>;              // the sum of the exponentials
var<workgroup> fade: array<vec4f, Q4>;              // the factor of earlier sums after a new maximum

// Scores to exponentials, their sums and the new maxima.
fn soften(count: u32, lane: u32) {
    let i = lane % Q4;
    let part = lane / Q4;
    if part < SPREAD {
        var top = vec4f(LOWEST);
        for (var j = part; j < count; j += SPREAD) {
            top = max(top, weights[j * Q4 + i]);
        }
        put_top(lane, top);
    }
    workgroupBarrier();
    var top = most[i];
    if part < SPREAD {
        for (var other = i; other < SPREAD * Q4; other += Q4) {
            top = max(top, top_at(other));
        }
        var total = vec4f();
        for (var j = part; j < count; j += SPREAD) {
            let s = weights[j * Q4 + i];
            let e = select(exp(s - top), vec4f(), s <= vec4f(LOWEST));
            weights[j * Q4 + i] = e;
            total += e;
        }
        put_total(lane, total);
    }
    workgroupBarrier();
    if lane < Q4 {
        let faded = exp(most[i] - top);
        var sum = sums[i] * faded;
        for (var other = i; other < SPREAD * Q4; other += Q4) {
            sum += total_at(other);
        }
        fade[i] = faded;
        most[i] = top;
        sums[i] = sum;
    }
}
