// w, a, gate and v_gate of a lane's channels: then(W x + b) of each, the second halves of LoRAs, W [D, RANKS] and x [T, RANKS].
//
// The lanes of a row of S share the same row of each W, 16 bytes at a time: turn s is turn TURN[s] of matrix MATRIX[s].
@group(0) @binding(2) var<storage, read> lows: array<vec4f>;            // x of each, the parts of a stack that start at LOWS
@group(0) @binding(8) var<storage, read> w: array<vec4u>;               // each W from WHERE on, whose rows have PIECES of 16 bytes

const PIECE = 4u * FOURS;                       // weights in 16 bytes
const STAGED = TURNS * FOURS * SIDE;            // vec4s of x, with zeros behind the end of each
const ROUNDS = (STAGED + WG - 1u) / WG;

var<private> plane: vec4u;
var<workgroup> staged: array<vec4f, STAGED>;    // [TURNS, FOURS, SIDE]

struct Asked {
    raw: array<vec4u, ROWS * TURNS>,
    x: array<vec4f, ROUNDS>,
    bias: array<vec4f, ROWS>,
}

fn ask(at: Place, lane: u32) -> Asked {
    var asked: Asked;
    for (var i = 0u; i < ROUNDS; i++) {
        asked.x[i] = low_of(at.token, i * WG + lane);
    }
    for (var i = 0u; i < ROWS * TURNS; i++) {
        let m = MATRIX[i % TURNS];
        let piece = min(TURN[i % TURNS] * SIDE + at.part, PIECES[m] - 1u);      // beyond the last it meets zeros
        asked.raw[i] = w[WHERE[m] + (at.head * N + at.row + i / TURNS) * PIECES[m] + piece];
    }
    for (var j = 0u; j < ROWS; j++) {
        for (var m = 0u; m < 4u; m++) {
            asked.bias[j][m] = vectors[(5u + m) * D4 + at.head * N4 + (at.row + j) / 4u][(at.row + j) % 4u];
        }
    }
    return asked;
}

// What lies at place e of what is staged.
fn low_of(token: u32, e: u32) -> vec4f {
    var first = 0u;
    var rank = RANKS[0];
    var low = LOWS[0];
    for (var m = 1u; m < 4u; m++) {
        let mine = RANKS[m] > 0u && e >= FIRST[m] * FOURS * SIDE;
        first = select(first, FIRST[m], mine);
        rank = select(rank, RANKS[m], mine);
        low = select(low, LOWS[m], mine);
    }
    let turn = e / (FOURS * SIDE) - first;
    let k = (turn * SIDE + e % SIDE) * PIECE + 4u * (e / SIDE % FOURS);
    if e >= STAGED || k >= rank {
        return vec4f();
    }
    return lows[low + (token * rank + k) / 4u];
}

fn answer(asked: Asked, at: Place, lane: u32) -> array<vec4f, ROWS> {
    var mine = asked;
    for (var i = 0u; i < ROUNDS; i++) {
        if i * WG + lane < STAGED {
            staged[i * WG + lane] = mine.x[i];
        }
    }
    workgroupBarrier();
    var sums: array<vec4f, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        sums[j] = vec4f();
    }
    for (var s = 0u; s < TURNS; s++) {
        for (var f = 0u; f < FOURS; f++) {
            let x = staged[(s * FOURS + f) * SIDE + at.part];
            for (var j = 0u; j < ROWS; j++) {
                sums[j][MATRIX[s]] += dot(floats(four_of(mine.raw[j * TURNS + s], f)), x);
            }
        }
    }
    var found: array<vec4f, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        for (var m = 0u; m < 4u; m++) {
            found[j][m] = NEUTRAL[m];
            if RANKS[m] > 0u {
                found[j][m] = activation(THEN[m], reach_add(sums[j][m], SIDE) + mine.bias[j][m]);
            }
        }
    }
    return found;
}
