// y_i[t] = x[t] + (before[t] - x[t]) · (mix_i + U_i low_i[t])      LANES_PER_NUMBER lanes for a number of ROWS rows
//
// Rows of U are short: neighbouring lanes load a row together, once for all ROWS rows of x.
// needs before: before_at; lib/step: apart; sum: group_sum
@group(0) @binding(1) var<storage, read> x: array<f32>;         // [T, D]
@group(0) @binding(3) var<storage, read> mix: array<f32>;       // [MIXES, D]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;   // [MIXES, T, D], a stack
@group(0) @binding(5) var<storage, read> low: array<vec4f>;     // [T, MIXES, RANK / 4]
@group(0) @binding(6) var<storage, read> up: array<vec4f>;      // [MIXES, D, RANK / 4]

const RANK4 = RANK / 4u;
const TURNS = (RANK4 + LANES_PER_NUMBER - 1u) / LANES_PER_NUMBER;       // vec4s of a row of U per lane

const_assert RANK % 4u == 0u && D % 4u == 0u;
const_assert WG % LANES_PER_NUMBER == 0u;

fn run(group: u32, lane: u32) {
    let numbers = MIXES * D;
    let across = (numbers + WG / LANES_PER_NUMBER - 1u) / (WG / LANES_PER_NUMBER);
    let own = group % across * (WG / LANES_PER_NUMBER) + lane / LANES_PER_NUMBER;
    let number = min(own, numbers - 1u);                // an index into [MIXES, D]
    let m = number / D;
    let d = number % D;
    let first = group / across * ROWS;
    let part = lane % LANES_PER_NUMBER;
    var amounts: array<f32, ROWS>;
    for (var turn = 0u; turn < TURNS; turn++) {
        let r = turn * LANES_PER_NUMBER + part;
        let u = select(vec4f(), up[number * RANK4 + min(r, RANK4 - 1u)], r < RANK4);
        for (var i = 0u; i < ROWS; i++) {
            let t = min(first + i, step.rows - 1u);
            amounts[i] += dot(u, low[(t * MIXES + m) * RANK4 + min(r, RANK4 - 1u)]);
        }
    }
    for (var i = 0u; i < ROWS; i++) {
        let t = min(first + i, step.rows - 1u);
        let here = x[t * D + d];
        let amount = mix[number] + group_sum(amounts[i], LANES_PER_NUMBER);
        if part == 0u && own < numbers && first + i < step.rows {
            y[4u * m * apart(D / 4u) + t * D + d] = here + (before_at(t, d) - here) * amount;
        }
    }
}
