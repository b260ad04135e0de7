// The sums of a tile of R rows of W by one fragment of x, with AHEAD steps in flight
//
// With few choices a step is so short that it would wait for loads issued in the step before. Each step in flight has separate
// registers, because moving a register waits for its load.
// needs format: run_raw; moe/expert_gemm_matrix: w_run, x_row; moe/matrix_sums: put_fragments
// needs moe/matrix_tile: copy_down, here, put_down, unit_of, x_four_of, x_here; x: rounded_four, x_four, x_start
const_assert FM == 1u && TB == S && (AHEAD == 2u || AHEAD == 4u);

struct Loads {
    w: array<Raw, W_LOADS * PARTS>,
    x: array<XFour, X_LOADS>,
}

var<private> w_from: array<u32, W_LOADS>;
var<private> x_from: array<u32, X_LOADS>;

fn multiply(lane: u32) {
    // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
    if workgroupUniformLoad(&live).x == 0u {
        return;
    }
    for (var n = 0u; n < W_LOADS; n++) {
        w_from[n] = w_run((n * WG + lane) / UNITS) + unit_of(n * WG + lane) * PARTS;
    }
    for (var n = 0u; n < X_LOADS; n++) {
        x_from[n] = x_start(x_row((n * WG + lane) / C4), x_four_of(n * WG + lane));
    }
    var sums = Sums();
    var first = loads_of(0u, lane); var second = loads_of(min(1u, STEPS - 1u), lane);
    var third: Loads; var fourth: Loads;
    if AHEAD > 2u {
        third = loads_of(min(2u, STEPS - 1u), lane);
        fourth = loads_of(min(3u, STEPS - 1u), lane);
    }
    for (var s = 0u; s < STEPS; s += AHEAD) {
        take(s, &first, &sums, lane);
        if s + 1u < STEPS { take(s + 1u, &second, &sums, lane); }
        if AHEAD > 2u && s + 2u < STEPS { take(s + 2u, &third, &sums, lane); }
        if AHEAD > 2u && s + 3u < STEPS { take(s + 3u, &fourth, &sums, lane); }
    }
    coopStore(sums, &y_tile[lane / SUBGROUP * S * S], S);
    put_fragments(0u, lane);
}

fn loads_of(s: u32, lane: u32) -> Loads {
    var loads: Loads;
    for (var n = 0u; n < W_LOADS; n++) {
        for (var p = 0u; p < PARTS; p++) {
            loads.w[n * PARTS + p] = run_raw(w_from[n] + here(s, n * WG + lane) + p);
        }
    }
    for (var n = 0u; n < X_LOADS; n++) {
        loads.x[n] = x_four(x_from[n], x_four_of(n * WG + lane), x_here(s, n * WG + lane));
    }
    return loads;
}

// Multiplies one step, and loads the step that uses these registers next.
fn take(s: u32, loads: ptr<function, Loads>, sums: ptr<function, Sums>, lane: u32) {
    workgroupBarrier();
    for (var n = 0u; n < W_LOADS; n++) {
        for (var p = 0u; p < PARTS; p++) {
            put_down((*loads).w[n * PARTS + p], w_from[n] + here(s, n * WG + lane) + p, s, n * WG + lane, p);
        }
    }
    for (var n = 0u; n < X_LOADS; n++) {
        copy_down(rounded_four((*loads).x[n]), n * WG + lane);
    }
    workgroupBarrier();
    if s + AHEAD < STEPS {
        *loads = loads_of(s + AHEAD, lane);
    }
    let own_m = lane / SUBGROUP % ALONG_M * S;
    let from4 = lane / SUBGROUP / ALONG_M * OWN4;
    for (var k = 0u; k < OWN4; k += S / 4u) {
        let a = coopLoadT<Left>(&w_step[own_m * STRIDE + from4 + k], STRIDE);
        *sums = coopMultiplyAdd(a, coopLoad<Right>(&x_step[from4 + k], STRIDE), *sums);
    }
}
