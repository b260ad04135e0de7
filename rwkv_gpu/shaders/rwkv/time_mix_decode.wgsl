// S = S diag(w) + v kᵀ - (S κ)(κ a)ᵀ, y = (norm(S r) + (r · k r_k) v) gate      one token: a workgroup per sequence and head, LANES_PER_ROW lanes per ROWS rows of S
//
// The lanes of a row of S also compute its channel: v, w, a and gate. Workgroup memory holds the vectors of the head, each loaded
// once, w and a, which are read by column, and S r, which is normed over the head. Independent loads are all issued at once.
// needs gates: gate_values, gates_from, load_gates, put; output: collect_output, quantise_output
// needs rows: beyond, segment_of; state: load_state, store_state; sum: group_sum; value: first_of
@group(0) @binding(1) var<storage, read> rkv: array<vec4f>;             // r, k, v [T, H, N / 4], at R, K, V of a stack
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // k_k, k_a, r_k, norm weight and bias [5, H, N / 4], and biases of LoRAs
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, N]

const N4 = N / 4u;
const D4 = H * N4;
const NEUTRAL = vec4f(0.0, 0.0, 1.0, 0.0);      // the value of a missing gate or v_gate
const COLUMNS = N4 / LANES_PER_ROW;          // vec4s of a row per lane: every LANES_PER_ROW-th, so that neighbouring lanes read neighbouring memory

// The vectors of a head.
const OF_R = 0u;
const OF_K = 1u;
const OF_V = 2u;
const OF_FIRST = 3u;                // v of the first layer
const OF_K_K = 4u;                  // this and the following are in the order of `vectors`
const OF_K_A = 5u;
const OF_R_K = 6u;
const OF_WEIGHT = 7u;               // weight of the norm
const OF_BIAS = 8u;
const OF_GATES = 9u;                // inputs of w, a, gate and v_gate
const VECTORS = 13u * N4;           // vec4s of all vectors
const LOADS = (VECTORS + WG - 1u) / WG;

const_assert WG * ROWS == N * LANES_PER_ROW;
const_assert N4 % LANES_PER_ROW == 0u;
const_assert LANES_PER_ROW <= SUBGROUP;

var<workgroup> head: array<vec4f, VECTORS>;
var<workgroup> decays: array<f32, N>;
var<workgroup> rates: array<f32, N>;
var<workgroup> outs: array<f32, N>;     // S r

// The task of a lane.
struct Place {
    token: u32,
    head: u32,
    row: u32,       // the first row of S of the lane
    part: u32,      // the first vec4 of the lane in a row
}

fn run(group: u32, lane: u32) {
    let token = group / H;
    let at = Place(token, group % H, lane / LANES_PER_ROW * ROWS, lane % LANES_PER_ROW);
    let segment = segment_of(at.token);
    var mine: array<vec4f, LOADS>;
    for (var i = 0u; i < LOADS; i++) {
        mine[i] = vector_of(at, min(i * WG + lane, VECTORS - 1u));
    }
    let loaded = load_gates(at, lane);
    if beyond(token) {      // `at` also has fields that differ between lanes, so its token would not count as uniform
        return;
    }
    let source = ((segment.source * H + at.head) * N + at.row) * N4 + at.part;
    let written = ((segment.written * H + at.head) * N + at.row) * N4 + at.part;
    var s: array<vec4f, ROWS * COLUMNS>;
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        s[i] = vec4f();
        if segment.start > 0u {
            s[i] = load_state(source + i / COLUMNS * N4 + i % COLUMNS * LANES_PER_ROW);
        }
    }
    for (var i = 0u; i < LOADS; i++) {
        if i * WG + lane < VECTORS {
            head[i * WG + lane] = mine[i];
        }
    }
    put(loaded, lane);
    workgroupBarrier();
    let gates = gate_values(loaded, at);      // w, a, gate and v_gate of the lane's rows
    if at.part == 0u {
        for (var j = 0u; j < ROWS; j++) {
            decays[at.row + j] = gates[j].x;
            rates[at.row + j] = gates[j].y;
        }
    }
    // Values that depend on k only: κ before its normalisation, and S κ.
    var kk: array<vec4f, COLUMNS>;
    var squares = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        let n = c * LANES_PER_ROW + at.part;
        kk[c] = head[OF_K * N4 + n] * head[OF_K_K * N4 + n];
        squares += dot(kk[c], kk[c]);
    }
    let scale = 1.0 / max(sqrt(group_sum(squares, LANES_PER_ROW)), 1e-12);
    var removed: array<f32, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        removed[j] = 0.0;
        for (var c = 0u; c < COLUMNS; c++) {
            removed[j] += dot(s[j * COLUMNS + c], kk[c]);
        }
        removed[j] = group_sum(removed[j], LANES_PER_ROW) * scale * scale;
    }
    workgroupBarrier();
    var v: array<f32, ROWS>;
    var out: array<f32, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        v[j] = mix(channel(OF_V, at.row + j), channel(OF_FIRST, at.row + j), gates[j].w);
        out[j] = 0.0;
    }
    var bonus = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        let n = c * LANES_PER_ROW + at.part;
        let decay = decays_at(n);
        let a = rates_at(n);
        let r = head[OF_R * N4 + n];
        let k = head[OF_K * N4 + n] * (1.0 + (a - 1.0) * head[OF_K_A * N4 + n]);
        bonus += dot(r * k, head[OF_R_K * N4 + n]);
        for (var j = 0u; j < ROWS; j++) {
            let now = fma(s[j * COLUMNS + c], decay, v[j] * k - removed[j] * (kk[c] * a));
            store_state(written + j * N4 + c * LANES_PER_ROW, now);
            out[j] += dot(now, r);
        }
    }
    bonus = group_sum(bonus, LANES_PER_ROW);
    for (var j = 0u; j < ROWS; j++) {
        out[j] = group_sum(out[j], LANES_PER_ROW);
        if at.part == 0u {
            outs[at.row + j] = out[j];
        }
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        sum += dot(outs_at(c * LANES_PER_ROW + at.part), vec4f(1.0));
    }
    let mean = group_sum(sum, LANES_PER_ROW) / f32(N);
    var variance = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        let centred = outs_at(c * LANES_PER_ROW + at.part) - mean;
        variance += dot(centred, centred);
    }
    let deviation = inverseSqrt(group_sum(variance, LANES_PER_ROW) / f32(N) + EPS);
    if at.part == 0u {
        for (var j = 0u; j < ROWS; j++) {
            let n = at.row + j;
            let normed = (out[j] - mean) * deviation * channel(OF_WEIGHT, n) + channel(OF_BIAS, n);
            let out = fma(bonus, v[j], normed) * gates[j].z;
            y[4u * (at.token * D4 + at.head * N4) + n] = out;
            collect_output(out, n);
        }
    }
    quantise_output(at, lane);
}

// Element e of the values of a head in workgroup memory.
fn vector_of(at: Place, e: u32) -> vec4f {
    let which = e / N4;
    let d = at.head * N4 + e % N4;
    let token = at.token * D4 + d;
    var found = vec4f();    // a single return: FXC misses a return in a case with two
    switch which {
        case OF_R: { found = rkv[R + token]; }
        case OF_K: { found = rkv[K + token]; }
        case OF_V: { found = rkv[V + token]; }
        case OF_FIRST: { found = first_of(token); }
        default: {
            if which >= OF_GATES {
                found = gates_from(which - OF_GATES, d, token);
            } else {
                found = vectors[(which - OF_K_K) * D4 + d];
            }
        }
    }
    return found;
}

fn channel(which: u32, n: u32) -> f32 { return head[which * N4 + n / 4u][n % 4u]; }

fn decays_at(i: u32) -> vec4f { return vec4f(decays[4u * i], decays[4u * i + 1u], decays[4u * i + 2u], decays[4u * i + 3u]); }

fn rates_at(i: u32) -> vec4f { return vec4f(rates[4u * i], rates[4u * i + 1u], rates[4u * i + 2u], rates[4u * i + 3u]); }

fn outs_at(i: u32) -> vec4f { return vec4f(outs[4u * i], outs[4u * i + 1u], outs[4u * i + 2u], outs[4u * i + 3u]); }
