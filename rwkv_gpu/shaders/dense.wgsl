// Ops by element and by row, and their parts.

//# argmax: y[t] = the first d where x[t, d] is largest      one workgroup per row t
// needs lanes: reduce_max, reduce_min
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<u32>;   // [T]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var most = -3.4e38;
    var place = D - 1u;
    for (var d = lane; d < D; d += WG) {
        if x[t * D + d] > most {
            most = x[t * D + d];
            place = d;
        }
    }
    let top = reduce_max(most, lane);
    place = reduce_min(select(D - 1u, place, most == top), lane);
    if lane == 0u {
        y[t] = place;
    }
}

//# concat: z[t, :] = [x[t, :] | y[t, :]]      one workgroup per row t
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, A]
@group(0) @binding(2) var<storage, read> y: array<f32>;         // [T, B]
@group(0) @binding(3) var<storage, read_write> z: array<f32>;   // [T, A + B]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    for (var d = lane; d < A; d += WG) {
        z[t * (A + B) + d] = x[t * A + d];
    }
    for (var d = lane; d < B; d += WG) {
        z[t * (A + B) + A + d] = y[t * B + d];
    }
}

//# spread: y[t, v] = x[t, column[v]], or the lowest logit if v has no column         one lane per element
@group(0) @binding(1) var<storage, read> x: array<f32>;             // [T, A]
@group(0) @binding(2) var<storage, read> columns: array<u32>;       // [B]; A if a row has no column
@group(0) @binding(3) var<storage, read_write> y: array<f32>;       // [T, B]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * B {
        return;
    }
    let column = columns[i % B];
    if column < A {
        y[i] = x[i / B * A + column];
    } else {
        y[i] = LEAST;
    }
}

//# copy_rows: y = x      one lane per vec4
@group(0) @binding(1) var<storage, read> x: array<vec4f>;               // [T, D / 4]
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;         // [T, D / 4]

const_assert D % 4u == 0u;

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * (D / 4u) {
        y[i] = x[i];
    }
}

//# embed
// y[t, :] = SCALE · W[ids[t], :]      one workgroup per id t, EACH for a row, one lane per run of W; a shard holds rows FIRST .. FIRST + ROWS
// needs formats/runs: run_quants, run_scale; ids: token_of
@group(0) @binding(1) var<storage, read> w: array<vec4u>;       // [ROWS, D] runs
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

const RUNS = (D + RUN - 1u) / RUN;
const plane = vec4u(PLANE0, PLANE1, PLANE2, PLANE3);

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows * EACH {
        return;
    }
    let row = token_of(t) - FIRST;     // for a row of another shard, wraps around to a large number
    if row >= ROWS {
        return;
    }
    for (var r = lane; r < RUNS; r += WG) {
        let i = row * RUNS + r;
        let scale = run_scale(i);
        var q = run_quants(i);
        for (var j = 0u; j < RUN; j++) {
            let k = r * RUN + j;
            if k < D {
                y[t * D + k] = SCALE * fma(scale.x, q[j / 4u][j % 4u], scale.y);
            }
        }
    }
}

//# token_numbers: y[t] = 1 + the token of row t, four times      one lane per element
// needs ids: token_of
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, 4]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * 4u {
        y[i] = f32(token_of(i / 4u) + 1u);
    }
}

//# excess: y[t, :] = max(x[t, :] - mean - DEVIATIONS · sqrt(sum (x - mean)² / (D - 1)), 0)      one workgroup per row t
// needs lanes: reduce_add
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var sum = 0.0;
    for (var d = lane; d < D; d += WG) {
        sum += x[t * D + d];
    }
    let mean = reduce_add(sum, lane) / f32(D);
    var squares = 0.0;
    for (var d = lane; d < D; d += WG) {
        squares += (x[t * D + d] - mean) * (x[t * D + d] - mean);
    }
    let least = mean + DEVIATIONS * sqrt(reduce_add(squares, lane) / f32(D - 1u));
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] = max(x[t * D + d] - least, 0.0);
    }
}

//# keep_rows: kept[slot, position % COUNT, :] = x[t, :] of the last rows of each segment      one workgroup per row t
@group(0) @binding(1) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(2) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(3) var<storage, read> slots: array<u32>;             // [S]
@group(0) @binding(4) var<storage, read_write> kept: array<f32>;        // [slots, COUNT, D]
@group(0) @binding(5) var<storage, read> x: array<f32>;                 // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let segment = segments[row_segment[t]];
    if t + COUNT < segment.first + segment.count {
        return;   // a later row of the segment takes its place
    }
    let at = (slots[row_segment[t]] * COUNT + (segment.start + t - segment.first) % COUNT) * D;
    for (var d = lane; d < D; d += WG) {
        kept[at + d] = x[t * D + d];
    }
}

//# layer_norm: y[t, :] = layer_norm(x[t, :]) * weight + bias      one workgroup per row t
// needs dense/norm/row: norm_row; rows: x4
fn run(group: u32, lane: u32) {
    if group < step.rows {
        norm_row(group, lane);
    }
}

fn four_at(t: u32, d: u32) -> vec4f { return x4(t * D, 4u * d, D); }

//# map_binary: y = binary(x, z), with REPEATED columns of z from column FIRST on, repeated for every element      one
// lane per element
// needs binary: binary
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> z: array<f32>;         // [T, Z]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * D {
        y[i] = binary(x[i], z[i / D * Z + FIRST + i % D % REPEATED]);
    }
}

//# map_unary: y = unary(x)      one lane per element
// needs unary: unary
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * D {
        y[i] = unary(x[i]);
    }
}

//# pick: y[r, :] = x[output_rows[r], :]      one workgroup per row r of the outputs
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, D]
@group(0) @binding(2) var<storage, read> output_rows: array<u32>;       // [R]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [R, D]

fn run(group: u32, lane: u32) {
    if group >= step.outputs {
        return;
    }
    let t = output_rows[group];
    for (var d = lane; d < D; d += WG) {
        y[group * D + d] = x[t * D + d];
    }
}

//# pick_blocks: y[r, :] = the COUNT rows of x from output_rows[r] on      one workgroup per output r
// needs blocks: width, block_at
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, D]
@group(0) @binding(2) var<storage, read> output_rows: array<u32>;       // [R]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // [R, width()]

fn run(group: u32, lane: u32) {
    if group >= step.outputs {
        return;
    }
    let first = output_rows[group] * D;
    for (var d = lane; d < width(); d += WG) {
        y[group * width() + d] = block_at(first, d);
    }
}

//# resize_heads: y[t, h] = x[t, h], cut to TO numbers, or padded with zeros after FROM numbers       one lane per
// element of y
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, H, FROM]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, H, TO]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * H * TO {
        return;
    }
    let d = i % TO;
    y[i] = select(0.0, x[i / TO * FROM + min(d, FROM - 1u)], d < FROM);
}

//# rms_norm
// y[t, :] = AFTER · (SCALE · x[t, :] / sqrt(mean(x[t, :]²) + EPS) · weight + residual[t, :])      one workgroup per row t
// needs gain: gain_at; lanes: reduce_add; next: look_at, round_row; residual: residual_at
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var squares = 0.0;
    for (var d = lane; d < D; d += WG) {
        squares += x[t * D + d] * x[t * D + d];
    }
    let scale = SCALE * inverseSqrt(reduce_add(squares, lane) / f32(D) + EPS);
    for (var d = lane; d < D; d += WG) {
        let value = AFTER * (x[t * D + d] * scale * gain_at(d) + residual_at(t * D + d));
        y[t * D + d] = value;
        look_at(value, d);
    }
    round_row(t, lane);
}

//# row_before
// y[t, :] = the row before t in the step, or the row BACK positions before it in the segment's slot, or zeros      one
// workgroup per row t
// needs row within: is_within, row_within
@group(0) @binding(1) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(2) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(3) var<storage, read> slots: array<u32>;             // [S]
@group(0) @binding(4) var<storage, read> kept: array<f32>;              // [slots, COUNT, D]
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let segment = segments[row_segment[t]];
    let at = (slots[row_segment[t]] * COUNT + (segment.start + COUNT - BACK) % COUNT) * D;
    for (var d = lane; d < D; d += WG) {
        if is_within(t, segment.first) {
            y[t * D + d] = row_within(t - 1u, d);
        } else {
            y[t * D + d] = select(kept[at + d], 0.0, segment.start < BACK);
        }
    }
}

//# scale_rows: y[t, d] = x[t, d] · by[t, d / PART] + residual[t, d]      one lane per element
// needs residual: residual_at
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read> by: array<f32>;        // [T, D / PART]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i < step.rows * D {
        y[i] = fma(x[i], by[i / PART], residual_at(i));
    }
}

//# mean_parts: y[t, d] = sum_i x[t, i · D + d] / PARTS      one lane per element
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, PARTS · D]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * D {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < PARTS; k++) {
        sum += x[(i / D * PARTS + k) * D + i % D];
    }
    y[i] = sum / f32(PARTS);
}

//# ngram_rows: y[t, i] = (xor of products of the last tokens) mod count + offset of choice i      one lane per element
@group(0) @binding(1) var<storage, read> numbers: array<f32>;       // [T, SIZE, 4]: 1 + token, 0 for none
@group(0) @binding(2) var<storage, read> table: array<vec2u>;       // multipliers [SIZE] as low and high word, counts and offsets [ROWS]
@group(0) @binding(3) var<storage, read_write> y: array<u32>;       // [T, ROWS]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * ROWS {
        return;
    }
    let t = i / ROWS;
    let last = i % ROWS / EACH + 1u;
    var mixed = vec2u();
    var ended = false;
    for (var s = 0u; s <= last; s++) {
        let number = u32(numbers[(t * SIZE + s) * 4u]);
        ended = ended || (s > 0u && (number == 0u || number == END + 1u));
        mixed ^= times(select(number - 1u, END, ended), table[s]);
    }
    let choice = table[SIZE + i % ROWS];
    y[i] = remainder(mixed, choice.x) + choice.y;
}

// x · y modulo 2^64, of y as low and high word.
fn times(x: u32, y: vec2u) -> vec2u {
    let a = (x & 0xffffu) * (y.x & 0xffffu);
    let b = (x >> 16u) * (y.x & 0xffffu);
    let c = (x & 0xffffu) * (y.x >> 16u);
    let middle = (a >> 16u) + (b & 0xffffu) + (c & 0xffffu);
    let high = (x >> 16u) * (y.x >> 16u) + (b >> 16u) + (c >> 16u) + (middle >> 16u);
    return vec2u((a & 0xffffu) | (middle << 16u), high + x * y.y);
}

// x modulo y < 2^31, by long division.
fn remainder(x: vec2u, y: u32) -> u32 {
    var rest = x.y % y;
    for (var bit = 32u; bit > 0u; bit--) {
        rest = (rest << 1u) | ((x.x >> (bit - 1u)) & 1u);
        rest = select(rest, rest - y, rest >= y);
    }
    return rest;
}

//# row_matrix: y[t, d] = sum_i x[t, i] · m[t, i · D + d]      one lane per element
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, K]
@group(0) @binding(2) var<storage, read> m: array<f32>;         // [T, K · D]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * D {
        return;
    }
    let t = i / D;
    var sum = 0.0;
    for (var k = 0u; k < K; k++) {
        sum = fma(x[t * K + k], m[(t * K + k) * D + i % D], sum);
    }
    y[i] = sum;
}

//# softmax: y[t, :] = exp(x[t, :] - max) / sum(exp(x[t, :] - max))      one workgroup per row t
// needs lanes: reduce_add, reduce_max
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(2) var<storage, read_write> y: array<f32>;   // [T, D]

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    var most = -3.4e38;
    for (var d = lane; d < D; d += WG) {
        most = max(most, x[t * D + d]);
    }
    most = reduce_max(most, lane);
    var sum = 0.0;
    for (var d = lane; d < D; d += WG) {
        let e = exp(x[t * D + d] - most);
        y[t * D + d] = e;
        sum += e;
    }
    let scale = 1.0 / reduce_add(sum, lane);
    for (var d = lane; d < D; d += WG) {
        y[t * D + d] *= scale;
    }
}

//# turn: y[t, h] = x[t, h], whose first R / 2 pairs are rotated by the angles of row t, part h mod PARTS      one lane per element
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D], heads of N
@group(0) @binding(2) var<storage, read> angles: array<f32>;    // [T, PARTS, R]: cosines, then sines
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, D]

const HALF = R / 2u;
const APART = select(1u, HALF, NEOX == 1u);     // distance of the two numbers of a pair

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= step.rows * D {
        return;
    }
    let n = i % D % N;
    if n >= R {
        y[i] = x[i];
        return;
    }
    let is_first = n / APART % 2u == 0u;
    let pair = select(n / 2u, n % HALF, NEOX == 1u);
    let at = (i / D * PARTS + i % D / N % PARTS) * R + pair;
    let other = x[select(i - APART, i + APART, is_first)];
    y[i] = fma(x[i], angles[at], select(other, -other, is_first) * angles[at + HALF]);
}

//# binary/add
fn binary(x: f32, z: f32) -> f32 { return x + z; }

//# binary/glu
// needs glu: glu
fn binary(x: f32, z: f32) -> f32 { return glu(x, z); }

//# binary/mul
fn binary(x: f32, z: f32) -> f32 { return x * z; }

//# blocks/by_column: Rows of a block with the numbers of one column next to each other.
fn width() -> u32 { return COUNT * D; }
fn block_at(first: u32, d: u32) -> f32 { return x[first + d % COUNT * D + d / COUNT]; }

//# blocks/joined: Rows of a block one after the other.
fn width() -> u32 { return COUNT * D; }
fn block_at(first: u32, d: u32) -> f32 { return x[first + d]; }

//# blocks/mean: The mean of the rows of a block.
fn width() -> u32 { return D; }
fn block_at(first: u32, d: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < COUNT; i++) {
        sum += x[first + i * D + d];
    }
    return sum / f32(COUNT);
}

//# gain/none: A norm without a weight.
fn gain_at(_d: u32) -> f32 { return 1.0; }

//# gain/weight: A norm with a weight.
@group(0) @binding(2) var<storage, read> weight: array<f32>;    // [D]

fn gain_at(d: u32) -> f32 { return weight[d]; }

//# ids/position: The position of a row in its sequence, in place of a token.
@group(0) @binding(2) var<storage, read> places: array<vec2u>;  // [T] of (position, its row among all pages)

fn token_of(t: u32) -> u32 { return places[t].x; }

//# ids/sampled: The token of a row, as the step gives it; if bit 31 is set, the token that a slot sampled last.
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]
@group(0) @binding(4) var<storage, read> sampled: array<u32>;      // [S + ...]

fn token_of(t: u32) -> u32 {
    let id = ids[t];
    if id >> 31u == 1u {
        return sampled[id & 0x7fffffffu];
    }
    return id;
}

//# ids/uploaded: The token of a row, as the step gives it.
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]

fn token_of(t: u32) -> u32 { return ids[t]; }

//# norm_gain/none: A layer norm without weight.
fn gain_at(_d: u32) -> vec4f { return vec4f(1.0); }

//# norm_gain/scalar: The weight of a layer norm, for rows of any width.
@group(0) @binding(5) var<storage, read> weight: array<f32>;    // [D]

fn gain_at(d: u32) -> vec4f {
    let at = min(vec4u(4u * d) + vec4u(0u, 1u, 2u, 3u), vec4u(D - 1u));
    return vec4f(weight[at.x], weight[at.y], weight[at.z], weight[at.w]);
}

//# norm_gain/vec4: The weight of a layer norm, for rows whose width is a multiple of 4.
@group(0) @binding(5) var<storage, read> weight: array<vec4f>;  // [D / 4]

fn gain_at(d: u32) -> vec4f { return weight[d]; }

//# row_within/none: Every row of the step is a segment.
fn is_within(_t: u32, _first: u32) -> bool { return false; }

fn row_within(_t: u32, _d: u32) -> f32 { return 0.0; }

//# row_within/rows: Segments have several rows.
@group(0) @binding(5) var<storage, read> x: array<f32>;                 // [T, D]

fn is_within(t: u32, first: u32) -> bool { return t > first; }

fn row_within(t: u32, d: u32) -> f32 { return x[t * D + d]; }

//# shift/none: A norm without bias.
fn shift_at(_d: u32) -> vec4f { return vec4f(); }

//# shift/scalar: The bias of a norm, for rows of any width.
@group(0) @binding(6) var<storage, read> bias: array<f32>;      // [D]

fn shift_at(d: u32) -> vec4f {
    let at = min(vec4u(4u * d) + vec4u(0u, 1u, 2u, 3u), vec4u(D - 1u));
    return vec4f(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
}

//# shift/vec4: The bias of a norm, for rows whose width is a multiple of 4.
@group(0) @binding(6) var<storage, read> bias: array<vec4f>;    // [D / 4]

fn shift_at(d: u32) -> vec4f { return bias[d]; }

//# unary/activation: An activation of the vocabulary, by its number THEN.
// needs lib/activation: activation
fn unary(x: f32) -> f32 { return activation(THEN, x); }

//# unary/clamp: Limits x to -NUMBER .. NUMBER.
fn unary(x: f32) -> f32 { return clamp(x, -NUMBER, NUMBER); }

//# unary/clip
fn unary(x: f32) -> f32 { return clamp(x, LOW, HIGH); }

//# unary/signed_root
fn unary(x: f32) -> f32 { return sign(x) * sqrt(max(abs(x), LEAST)); }

//# unary/gelu_erf: GELU with erf, by formula 7.1.26 of Abramowitz and Stegun.
fn unary(x: f32) -> f32 {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return 0.5 * (x + abs(x) * (1.0 - sum * exp(-z * z)));
}

//# unary/scale
fn unary(x: f32) -> f32 { return NUMBER * x; }

//# unary/softcap: x within NUMBER. The argument is limited to 10, where tanh is 1 in float32, as some drivers' tanh
// overflows past 44.
fn unary(x: f32) -> f32 { return NUMBER * tanh(clamp(x / NUMBER, -10.0, 10.0)); }

//# unary/swish
fn unary(x: f32) -> f32 { return x / (1.0 + exp(-NUMBER * x)); }

//# unary/xielu: xIELU: a parabola above 0, and an exponential minus a line below.
fn unary(x: f32) -> f32 {
    let below = NEGATIVE * (exp(min(x, LEAST)) - 1.0 - x);
    return select(below, POSITIVE * x * x, x > 0.0) + BETA * x;
}
