// Parts of time_mix_decode: rows, gates, values and outputs.

//# f16_weights: 16 bytes are eight weights.
const FOURS = 2u;

fn four_of(raw: vec4u, f: u32) -> Four { return select(raw.xy, raw.zw, f == 1u); }

//# f32_weights: 16 bytes are four weights.
const FOURS = 1u;

fn four_of(raw: vec4u, _f: u32) -> Four { return raw; }

//# first_layer_value: v of the first layer, which is mixed into v of a later layer.
@group(0) @binding(7) var<storage, read> v_first: array<vec4f>;         // [T, H, N / 4]

fn first_of(token: u32) -> vec4f { return v_first[token]; }

//# floats: y is written as floats only.
fn collect_output(_value: f32, _n: u32) {}
fn quantise_output(_at: Place, _lane: u32) {}

//# gates: w, a, gate and v_gate of a lane's channels, computed by earlier dispatches.
// needs kernel: channel
@group(0) @binding(2) var<storage, read> stack: array<vec4f>;           // [T, H, N / 4] each, at GATES

const ABSENT = 0xffffffffu;

alias LoadedGates = u32;      // no loaded values

fn load_gates(_at: Place, _lane: u32) -> LoadedGates { return 0u; }
fn put(_asked: LoadedGates, _lane: u32) {}

fn gates_from(m: u32, _d: u32, token: u32) -> vec4f {
    var places = GATES;
    if places[m] == ABSENT {
        return vec4f(NEUTRAL[m]);
    }
    return stack[places[m] + token];
}

fn gate_values(_asked: LoadedGates, at: Place) -> array<vec4f, ROWS> {
    var found: array<vec4f, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        for (var m = 0u; m < 4u; m++) {
            found[j][m] = channel(OF_GATES + m, at.row + j);
        }
    }
    return found;
}

//# lora_gates
// w, a, gate and v_gate of a lane's channels, computed as the second halves of LoRAs: then(W x + b), W [D, RANKS] and x [T, RANKS].
//
// The lanes of a row of S share the same row of each W, 16 bytes at a time. Each matrix is chosen by a constant, not by
// a loop counter: arrays with an index that compilers do not know would not stay in registers.
// needs format: floats; kernel: channel; lib/activation: activation; sum: group_sum; weights: four_of
@group(0) @binding(2) var<storage, read> lora_inputs: array<vec4f>;            // the inputs of all LoRAs, which start at LOWS in a stack
@group(0) @binding(8) var<storage, read> w: array<vec4u>;               // all W from WHERE on, in rows of PIECES times 16 bytes

const PIECE = 4u * FOURS;                       // weights in 16 bytes
const STAGED = TURNS * FOURS * LANES_PER_ROW;            // vec4s of the inputs, each padded with zeros
const ROUNDS = (STAGED + WG - 1u) / WG;

var<private> plane: vec4u;
var<workgroup> staged: array<vec4f, STAGED>;    // [TURNS, FOURS, LANES_PER_ROW]

struct LoadedGates {
    raw: array<vec4u, TURNS * ROWS>,            // the turns of a matrix start at FIRST
    x: array<vec4f, ROUNDS>,
}

fn load_gates(at: Place, lane: u32) -> LoadedGates {
    var loaded: LoadedGates;
    for (var i = 0u; i < ROUNDS; i++) {
        loaded.x[i] = low_of(at.token, i * WG + lane);
    }
    load_matrix(&loaded, at, FIRST[0], PIECES[0], WHERE[0]);
    load_matrix(&loaded, at, FIRST[1], PIECES[1], WHERE[1]);
    load_matrix(&loaded, at, FIRST[2], PIECES[2], WHERE[2]);
    load_matrix(&loaded, at, FIRST[3], PIECES[3], WHERE[3]);
    return loaded;
}

fn load_matrix(loaded: ptr<function, LoadedGates>, at: Place, first: u32, pieces: u32, start: u32) {
    for (var turn = 0u; turn < (pieces + LANES_PER_ROW - 1u) / LANES_PER_ROW; turn++) {
        let piece = min(turn * LANES_PER_ROW + at.part, pieces - 1u);        // beyond the last, it is multiplied by zeros
        for (var j = 0u; j < ROWS; j++) {
            (*loaded).raw[(first + turn) * ROWS + j] = w[start + (at.head * N + at.row + j) * pieces + piece];
        }
    }
}

// Element e of the staged values.
fn low_of(token: u32, e: u32) -> vec4f {
    let turn = e / (FOURS * LANES_PER_ROW);
    var whose = vec3u(FIRST[0], RANKS[0], LOWS[0]);
    whose = select(whose, vec3u(FIRST[1], RANKS[1], LOWS[1]), turn >= FIRST[1]);
    whose = select(whose, vec3u(FIRST[2], RANKS[2], LOWS[2]), turn >= FIRST[2]);
    whose = select(whose, vec3u(FIRST[3], RANKS[3], LOWS[3]), turn >= FIRST[3]);
    let k = ((turn - whose.x) * LANES_PER_ROW + e % LANES_PER_ROW) * PIECE + 4u * (e / LANES_PER_ROW % FOURS);
    if turn >= TURNS || k >= whose.y {
        return vec4f();
    }
    return lora_inputs[whose.z + (token * whose.y + k) / 4u];
}

// Gates are computed from products and a bias.
fn gates_from(m: u32, d: u32, _token: u32) -> vec4f { return vectors[(5u + m) * D4 + d]; }

// Makes the values available to all lanes.
fn put(loaded: LoadedGates, lane: u32) {
    for (var i = 0u; i < ROUNDS; i++) {
        if i * WG + lane < STAGED {
            staged[i * WG + lane] = loaded.x[i];
        }
    }
}

fn gate_values(loaded: LoadedGates, at: Place) -> array<vec4f, ROWS> {
    var mine = loaded;
    let decay = multiply(&mine, at, FIRST[0], PIECES[0]);
    let rate = multiply(&mine, at, FIRST[1], PIECES[1]);
    let gate = multiply(&mine, at, FIRST[2], PIECES[2]);
    let v_gate = multiply(&mine, at, FIRST[3], PIECES[3]);
    var found: array<vec4f, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        let n = at.row + j;
        let bias = vec4f(channel(OF_GATES, n), channel(OF_GATES + 1u, n), channel(OF_GATES + 2u, n), channel(OF_GATES + 3u, n));
        let sums = vec4f(decay[j], rate[j], gate[j], v_gate[j]) + bias;
        found[j] = vec4f(
            activation(THEN[0], sums.x),
            activation(THEN[1], sums.y),
            select(NEUTRAL.z, activation(THEN[2], sums.z), RANKS[2] > 0u),
            select(NEUTRAL.w, activation(THEN[3], sums.w), RANKS[3] > 0u),
        );
    }
    return found;
}

fn multiply(loaded: ptr<function, LoadedGates>, at: Place, first: u32, pieces: u32) -> array<f32, ROWS> {
    var sums: array<f32, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        sums[j] = 0.0;
    }
    for (var turn = first; turn < first + (pieces + LANES_PER_ROW - 1u) / LANES_PER_ROW; turn++) {
        for (var f = 0u; f < FOURS; f++) {
            let x = staged[(turn * FOURS + f) * LANES_PER_ROW + at.part];
            for (var j = 0u; j < ROWS; j++) {
                sums[j] += dot(floats(four_of((*loaded).raw[turn * ROWS + j], f)), x);
            }
        }
    }
    for (var j = 0u; j < ROWS; j++) {
        sums[j] = group_sum(sums[j], LANES_PER_ROW);
    }
    return sums;
}

//# own_value: The first layer has no v to mix in.
fn first_of(_token: u32) -> vec4f { return vec4f(); }

//# quantise: y is also written as integers: some lanes convert the results of all lanes. Decays are no longer needed then.
// needs kernel: decays_at; lib/store_quantised: store_quantised
@group(0) @binding(9) var<storage, read_write> quantised: array<u32>;

const_assert N % 32u == 0u;
const_assert WG >= N4;

fn collect_output(value: f32, n: u32) { decays[n] = value; }

fn quantise_output(at: Place, lane: u32) {
    workgroupBarrier();
    if lane < N4 {
        store_quantised(decays_at(lane), 0u, at.token, at.head * N4 + lane, D4 / 8u, 1.0, true);
    }
}

//# round: y is also written as float16. Decays are no longer needed then.
// needs kernel: decays_at; lib/matrix_units/in_units: in_units; lib/matrix_units/rounded: halves_of, place_of_four
@group(0) @binding(9) var<storage, read_write> rounded: array<vec2u>;    // in the layout of round_rows, without exponents

const_assert WG >= N4;

fn collect_output(value: f32, n: u32) { decays[n] = value; }

fn quantise_output(at: Place, lane: u32) {
    workgroupBarrier();
    if lane < N4 {
        rounded[place_of_four(at.token, at.head * N4 + lane, D4)] = halves_of(in_units(decays_at(lane)));
    }
}

//# several_rows: Several sequences, each with one row.
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [T]

fn segment_of(token: u32) -> Segment { return segments[token]; }
fn beyond(token: u32) -> bool { return token >= step.rows; }

//# single_row: The only row of a step: its segment is read from a uniform, which is available sooner than values in
// storage.
@group(0) @binding(4) var<uniform> segment: Segment;

fn segment_of(_token: u32) -> Segment { return segment; }
fn beyond(_token: u32) -> bool { return false; }
