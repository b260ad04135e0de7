// Parts of mixtures of experts: routing, inputs, sums and results of experts.

//# group_choices: groups = experts / SIZE, scaled = SCALE · shares      one lane per choice
@group(0) @binding(1) var<storage, read> experts: array<u32>;           // [T, USED]
@group(0) @binding(2) var<storage, read> shares: array<f32>;            // [T, USED]
@group(0) @binding(3) var<storage, read_write> groups: array<u32>;      // [T, USED]
@group(0) @binding(4) var<storage, read_write> scaled: array<f32>;      // [T, USED]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * USED {
        groups[i] = experts[i] / SIZE;
        scaled[i] = SCALE * shares[i];
    }
}

//# route_known: experts = known, their shares from their logits      one lane per row
// needs gating: weight_of; moe/shares: share_scale
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, E]
@group(0) @binding(2) var<storage, read_write> experts: array<u32>;     // [T, USED]
@group(0) @binding(3) var<storage, read_write> shares: array<f32>;      // [T, USED]
@group(0) @binding(4) var<storage, read> known: array<f32>;             // [T, K]

fn run(group: u32, lane: u32) {
    let t = group * WG + lane;
    if t >= step.rows {
        return;
    }
    var sum = 0.0;
    for (var j = 0u; j < USED; j++) {
        let e = min(u32(known[t * K + j]), E - 1u);
        experts[t * USED + j] = e;
        sum += weight_of(x[t * E + e], 0.0);
    }
    let scale = share_scale(0.0, sum);
    for (var j = 0u; j < USED; j++) {
        let e = min(u32(known[t * K + j]), E - 1u);
        shares[t * USED + j] = scale * weight_of(x[t * E + e], 0.0);
    }
}

//# shares: Converts the logits of the chosen experts to their shares.
// needs gating: whole
// The factor of a chosen expert's weight. The sums are over the weights of all experts, and of the chosen ones.
fn share_scale(of_all: f32, of_chosen: f32) -> f32 {
    let scale = 1.0 / whole(of_all, of_chosen);
    return SHARE_SCALE * select(scale, scale / max(scale * of_chosen, MIN_SUM), NORMALISE == 1u);
}

//# tiles: The tile of choices that a workgroup computes.
// Choices n = t * USED + j of one expert.
// needs choices: choice_at
struct Tile {
    expert: u32,    // the expert's number in the shard
    first: u32,     // the place of the first choice
    count: u32,     // 0 if there is no work
}

fn tile_here(expert: u32, first: u32, count: u32) -> Tile {
    let here = expert - shard.first;    // wraps around if the expert is before the shard
    return Tile(here, first, select(0u, count, here < shard.experts));
}

// The start of the input of a choice in a tile; beyond the tile's end, of the last choice.
fn input_of(tile: Tile, place: u32) -> u32 {
    return input_at(tile.first + min(place, tile.count - 1u));
}

fn input_at(place: u32) -> u32 { return choice_at(place) / INPUT_USES * INPUT_STRIDE; }

//# weights_of_fours: The weights of a run as float16, in the order of `round_rows`.
// needs decoded weights: four_weights; format: fours_of
fn weights_of(raw: Raw, i: u32, scale: vec2f) -> array<vec4<f16>, RUN / 4u> {
    var q = fours_of(raw, i);
    var found: array<vec4<f16>, RUN / 4u>;
    for (var n = 0u; n < RUN / 4u; n++) {
        found[n] = four_weights(q[n], scale);
    }
    return found;
}

//# write: Writes the sums of a choice.
// needs bias: bias_of; choices: choice_at; input scale: input_scale; result: result; sums: sum_scale
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [T * USED, M]

// Writes row m of a choice in a tile, and returns it; `first` and `second` are the sums of its one or two matrices.
fn write(tile: Tile, place: u32, m: u32, first: f32, second: f32) -> f32 {
    let n = choice_at(tile.first + place);
    let expert = shard.first + tile.expert;
    let row = expert * M + m;
    let scale = input_scale(n);
    let one = fma(scale * sum_scale(0u, expert), first, bias_of(0u, row));
    let two = fma(scale * sum_scale(MATRICES - 1u, expert), second, bias_of(MATRICES - 1u, row));
    let value = result(one, two, n * M + m);
    y[n * M + m] = value;
    return value;
}

//# answer/plain
fn answer_scale(_e: u32) -> f32 { return 1.0; }

//# answer/scaled: The scale of an expert's result, as part of its share.
@group(0) @binding(13) var<storage, read> answer_scales: array<f32>;    // [E]

fn answer_scale(e: u32) -> f32 { return answer_scales[e]; }

//# bias/each: Biases of the rows of all experts, matrix by matrix.
@group(0) @binding(10) var<storage, read> biases: array<f32>;   // [MATRICES, EXPERTS, M]

const BIASED = true;

fn bias_of(matrix: u32, row: u32) -> f32 { return biases[matrix * EXPERTS * M + row]; }

//# bias/none
const BIASED = false;

fn bias_of(_matrix: u32, _row: u32) -> f32 { return 0.0; }

//# block_next/none: The results of a workgroup are written as floats only.
fn collect(_n: u32, _value: f32) {}

fn keep_block(_t: u32, _first: u32, _lane: u32) {}

//# block_next/norm
// The results of a workgroup are normed next, so they are also written as float16. Neighbouring lanes have neighbouring
// sums.
// needs lib/matrix_units/to_norm: keep_to_norm
@group(0) @binding(13) var<storage, read> next_gain: array<f32>;    // [M]

const_assert M % 64u == 0u && OWNED % S == 0u && WG % S == 0u;

var<workgroup> collected: array<f32, OWNED>;

fn collect(n: u32, value: f32) { collected[n] = value; }

fn keep_block(t: u32, first: u32, lane: u32) {
    workgroupBarrier();
    let there = lane < OWNED && first + lane < M;
    keep_to_norm(collected[lane % OWNED], next_gain[(first + lane) % M], t, first + lane, M, there);
}

//# choosing/biased: Experts are chosen by their scores plus a bias, which does not affect their shares.
@group(0) @binding(12) var<storage, read> selection_bias: array<f32>;   // [E]

const BY_SCORE = true;

fn chosen_by(score: f32, _logit: f32, e: u32) -> f32 { return score + selection_bias[e]; }

//# choosing/logits: Experts are chosen by their logits, which are in the order of their scores.
const BY_SCORE = false;

fn chosen_by(_score: f32, logit: f32, _e: u32) -> f32 { return logit; }

//# choosing/scores: Experts are chosen by their scores, which groups add up.
const BY_SCORE = true;

fn chosen_by(score: f32, _logit: f32, _e: u32) -> f32 { return score; }

//# gating/late_softmax: A score is the softmax of the logits of the chosen experts.
const OF_ALL = false;

fn weight_of(logit: f32, most: f32) -> f32 { return exp(logit - most); }
fn whole(_of_all: f32, of_chosen: f32) -> f32 { return of_chosen; }

//# gating/sigmoid: A score is the sigmoid of the logit.
const OF_ALL = false;

fn weight_of(logit: f32, _most: f32) -> f32 { return 1.0 / (1.0 + exp(-logit)); }
fn whole(_of_all: f32, _of_chosen: f32) -> f32 { return 1.0; }

//# gating/softmax: A score is the softmax of the logits of all experts.
const OF_ALL = true;

fn weight_of(logit: f32, most: f32) -> f32 { return exp(logit - most); }
fn whole(of_all: f32, _of_chosen: f32) -> f32 { return of_all; }

//# gating/sqrt_softplus: A score is the root of the softplus of the logit.
const OF_ALL = false;

fn weight_of(logit: f32, _most: f32) -> f32 { return sqrt(max(logit, 0.0) + log(1.0 + exp(-abs(logit)))); }
fn whole(_of_all: f32, _of_chosen: f32) -> f32 { return 1.0; }

//# glu/activated
// needs lib/activation: activation
fn glu(gate: f32, up: f32) -> f32 { return activation(THEN, gate) * up; }

//# glu/clamped_swiglu
// min(s(min(gate, MAX_GATE)), MAX_ACTIVATED) · (up within ±LIMIT + SHIFT), s(a) = a · sigmoid(ALPHA · a)
fn glu(gate: f32, up: f32) -> f32 {
    let a = min(gate, MAX_GATE);
    return min(a / (1.0 + exp(-ALPHA * a)), MAX_ACTIVATED) * (clamp(up, -LIMIT, LIMIT) + SHIFT);
}

//# glu/situ: Gate and up are bounded by tanh, which is 1 from 10 on; some drivers' overflows past 44.
fn within(x: f32, limit: f32) -> f32 { return limit * tanh(clamp(x / limit, -10.0, 10.0)); }

fn glu(gate: f32, up: f32) -> f32 { return within(gate, LIMIT) / (1.0 + exp(-gate)) * within(up, UP_LIMIT); }

//# input/plain
fn input_scale(_n: u32) -> f32 { return 1.0; }

//# input/scaled: The input of an expert is multiplied by its share, and with it the product of each matrix.
@group(0) @binding(11) var<storage, read> input_scales: array<f32>;     // [T * USED]

fn input_scale(n: u32) -> f32 { return input_scales[n]; }

//# kept/none: The results are not written as float16.
fn keep(_n: u32, _m: u32, _value: f32, _there: bool) {}

//# kept/rounded
// y is also written as float16. There, SIDE_BY_SIDE neighbouring choices, such as all heads of a row, form a row. Four
// neighbouring lanes have four columns; the first two lanes write two each.
// needs lib/matrix_units/in_units: word_of_two; lib/matrix_units/rounded: place_of_four
@group(0) @binding(12) var<storage, read_write> rounded: array<u32>;     // in the layout of round_rows, without exponents

const_assert M * SIDE_BY_SIDE % 64u == 0u && M % 4u == 0u && R / MATRICES % 4u == 0u && WG % 4u == 0u;

fn keep(n: u32, m: u32, value: f32, there: bool) {
    let word = word_of_two(value);
    if there && m % 4u < 2u {
        let four = (n % SIDE_BY_SIDE * M + m) / 4u;
        rounded[2u * place_of_four(n / SIDE_BY_SIDE, four, M * SIDE_BY_SIDE / 4u) + m % 4u] = word;
    }
}

//# next/none: Results are written as floats only.
fn keep(_i: u32, _value: f32) {}

//# next/norm: Results are normed next, so they are also written as float16.
// needs lib/matrix_units/to_norm: keep_to_norm
@group(0) @binding(13) var<storage, read> next_gain: array<f32>;    // [M]

const_assert M % 64u == 0u && WG % S == 0u;

fn keep(i: u32, value: f32) { keep_to_norm(value, next_gain[i % M], i / M, i % M, M, i < step.rows * M); }

//# residual/shared: The residual, plus the result of a shared expert times its gate.
@group(0) @binding(5) var<storage, read> residual: array<f32>;      // [T, M]
@group(0) @binding(8) var<storage, read> shared_rows: array<f32>;   // [T, M]
@group(0) @binding(9) var<storage, read> shared_gates: array<f32>;  // [T]

fn residual_at(i: u32) -> f32 { return fma(shared_rows[i], shared_gates[i / M], residual[i]); }

//# result/gated: y[n, m] = glu(gate[n, m], W_e[m] · x)
// needs glu: glu
const MATRICES = 1u;

@group(0) @binding(7) var<storage, read> gate: array<f32>;      // [T * USED, M], the results of the gate

fn result(dot: f32, _second: f32, i: u32) -> f32 { return glu(gate[i], dot); }

//# result/glu: y[n, m] = glu(G_e[m] · x, U_e[m] · x)
// needs glu: glu
const MATRICES = 2u;

fn result(gate: f32, up: f32, i: u32) -> f32 { return glu(gate, up); }

//# result/plain: y[n, m] = then(W_e[m] · x)
// needs lib/activation: activation
const MATRICES = 1u;

fn result(dot: f32, _second: f32, i: u32) -> f32 { return activation(THEN, dot); }

//# share/each
@group(0) @binding(7) var<storage, read> shares: array<f32>;            // [T, USED]

fn share_at(n: u32) -> f32 { return shares[n]; }

//# share/one: Results are added without weights.
fn share_at(_n: u32) -> f32 { return 1.0; }

//# sort/chosen: Another dispatch has chosen experts.
@group(0) @binding(8) var<storage, read> experts: array<u32>;           // [T, USED]

fn choose(_lane: u32) {}

//# sort/ranked: Subgroups choose the experts, each of some rows, before the choices are sorted.
// needs moe/ranking: rank
const SUBGROUPS = WG / SUBGROUP;

const_assert USED <= SUBGROUP;

fn choose(lane: u32) {
    for (var first = 0u; first < step.rows; first += SUBGROUPS) {
        let t = first + lane / SUBGROUP;
        _ = rank(min(t, step.rows - 1u), 0u, USED, t < step.rows, lane % SUBGROUP);
    }
    storageBarrier();
}

//# sums/plain
fn sum_scale(_matrix: u32, _expert: u32) -> f32 { return 1.0; }

//# sums/scaled: Scales of all experts, matrix by matrix.
@group(0) @binding(14) var<storage, read> sum_scales: array<f32>;   // [MATRICES, EXPERTS]

fn sum_scale(matrix: u32, expert: u32) -> f32 { return sum_scales[matrix * EXPERTS + expert]; }

//# unit/all: All rows of x are multiples of one unit.
fn scale_at(_t: u32) -> f32 { return X_UNIT / W_SCALE; }

//# unit/row: Each row of x has a power of two, stored after the rows.
fn scale_at(t: u32) -> f32 { return ldexp(1.0, i32(unpack2x16float(x[X_ROWS * PADDED4 + t].x).x) - i32(W_EXPONENT)); }
