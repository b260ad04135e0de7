// S = S diag(w) + v kᵀ - (S κ)(κ a)ᵀ, y = (norm(S r) + (r · k r_k) v) gate      one token: a workgroup per sequence and head, SIDE lanes per ROWS rows of S
//
// The lanes of a row of S have its channel, too: its v, w, a and gate. Only w and a, which are wanted by column, and S r,
// which is normed over the head, go through workgroup memory. All that does not depend on each other is asked for at once.
@group(0) @binding(1) var<storage, read> rkv: array<vec4f>;             // r, k, v [T, H, N / 4], at R, K, V of a stack
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // k_k, k_a, r_k, norm weight and bias [5, H, N / 4], and biases of LoRAs
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [T], one row each
@group(0) @binding(5) var<storage, read_write> state: array<vec4f>;     // [states, H, N, N / 4], value by key
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, N]

const N4 = N / 4u;
const D4 = H * N4;
const NEUTRAL = vec4f(0.0, 0.0, 1.0, 0.0);      // what stands for a gate, or a v_gate, that there is not
const COLUMNS = N4 / SIDE;          // vec4s of a lane: every SIDE-th, so that lanes load side by side

const_assert WG * ROWS == N * SIDE;
const_assert N4 % SIDE == 0u;
const_assert SIDE <= SUBGROUP;

var<workgroup> decays: array<f32, N>;
var<workgroup> rates: array<f32, N>;
var<workgroup> outs: array<f32, N>;     // S r

// What a lane is there for.
struct Place {
    token: u32,
    head: u32,
    row: u32,       // its first, of S
    part: u32,      // of a row: its first vec4
}

// What a channel of the head is multiplied by.
struct Channel {
    v: f32,
    first: f32,     // v of the first layer
    weight: f32,    // of the norm
    bias: f32,
}

fn run(group: u32, lane: u32) {
    let at = Place(group / H, group % H, lane / SIDE * ROWS, lane % SIDE);
    let segment = segments[at.token];
    let asked = ask(at, lane);
    var r: array<vec4f, COLUMNS>;
    var raw: array<vec4f, COLUMNS>;
    var k_k: array<vec4f, COLUMNS>;
    var k_a: array<vec4f, COLUMNS>;
    var r_k: array<vec4f, COLUMNS>;
    for (var c = 0u; c < COLUMNS; c++) {
        let d = at.head * N4 + c * SIDE + at.part;
        r[c] = rkv[R + at.token * D4 + d];
        raw[c] = rkv[K + at.token * D4 + d];
        k_k[c] = vectors[d];
        k_a[c] = vectors[D4 + d];
        r_k[c] = vectors[2u * D4 + d];
    }
    var channels: array<Channel, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        channels[j] = channel_of(at, j);
    }
    if ALONE == 0u && at.token >= step.rows {
        return;
    }
    let source = ((segment.source * H + at.head) * N + at.row) * N4 + at.part;
    let written = ((segment.written * H + at.head) * N + at.row) * N4 + at.part;
    var s: array<vec4f, ROWS * COLUMNS>;
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        s[i] = vec4f();
        if segment.start > 0u {
            s[i] = state[source + i / COLUMNS * N4 + i % COLUMNS * SIDE];
        }
    }
    var gates = answer(asked, at, lane);        // w, a, gate and v_gate of the lane's rows
    if at.part == 0u {
        for (var j = 0u; j < ROWS; j++) {
            decays[at.row + j] = gates[j].x;
            rates[at.row + j] = gates[j].y;
        }
    }
    // What hangs on k alone: κ, not yet normalised, and S κ.
    var kk: array<vec4f, COLUMNS>;
    var squares = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        kk[c] = raw[c] * k_k[c];
        squares += dot(kk[c], kk[c]);
    }
    let scale = 1.0 / max(sqrt(reach_add(squares, SIDE)), 1e-12);
    var removed: array<f32, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        channels[j].v += (channels[j].first - channels[j].v) * gates[j].w;
        removed[j] = 0.0;
        for (var c = 0u; c < COLUMNS; c++) {
            removed[j] += dot(s[j * COLUMNS + c], kk[c]);
        }
        removed[j] = reach_add(removed[j], SIDE) * scale * scale;
    }
    workgroupBarrier();
    var bonus = 0.0;
    var out: array<f32, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        out[j] = 0.0;
    }
    for (var c = 0u; c < COLUMNS; c++) {
        let n = c * SIDE + at.part;
        let decay = decays_at(n);
        let a = rates_at(n);
        let k = raw[c] * (1.0 + (a - 1.0) * k_a[c]);
        bonus += dot(r[c] * k, r_k[c]);
        for (var j = 0u; j < ROWS; j++) {
            let now = fma(s[j * COLUMNS + c], decay, channels[j].v * k - removed[j] * (kk[c] * a));
            state[written + j * N4 + c * SIDE] = now;
            out[j] += dot(now, r[c]);
        }
    }
    bonus = reach_add(bonus, SIDE);
    for (var j = 0u; j < ROWS; j++) {
        out[j] = reach_add(out[j], SIDE);
        if at.part == 0u {
            outs[at.row + j] = out[j];
        }
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        sum += dot(outs_at(c * SIDE + at.part), vec4f(1.0));
    }
    let mean = reach_add(sum, SIDE) / f32(N);
    var variance = 0.0;
    for (var c = 0u; c < COLUMNS; c++) {
        let centred = outs_at(c * SIDE + at.part) - mean;
        variance += dot(centred, centred);
    }
    let deviation = inverseSqrt(reach_add(variance, SIDE) / f32(N) + EPS);
    if at.part == 0u {
        for (var j = 0u; j < ROWS; j++) {
            let normed = (outs[at.row + j] - mean) * deviation * channels[j].weight + channels[j].bias;
            y[4u * (at.token * D4 + at.head * N4) + at.row + j] = fma(bonus, channels[j].v, normed) * gates[j].z;
        }
    }
}

fn channel_of(at: Place, j: u32) -> Channel {
    let i = (at.row + j) / 4u;
    let n = (at.row + j) % 4u;
    let d = at.head * N4 + i;
    let token = at.token * D4 + d;
    return Channel(
        rkv[V + token][n],
        first_of(token)[n],
        vectors[3u * D4 + d][n],
        vectors[4u * D4 + d][n],
    );
}

fn decays_at(i: u32) -> vec4f { return vec4f(decays[4u * i], decays[4u * i + 1u], decays[4u * i + 2u], decays[4u * i + 3u]); }

fn rates_at(i: u32) -> vec4f { return vec4f(rates[4u * i], rates[4u * i + 1u], rates[4u * i + 2u], rates[4u * i + 3u]); }

fn outs_at(i: u32) -> vec4f { return vec4f(outs[4u * i], outs[4u * i + 1u], outs[4u * i + 2u], outs[4u * i + 3u]); }
