// The sums of a tile, by subgroups that have 2 x 2 fragments of S x S each; what is multiplied next is on its way meanwhile
// needs format: run_raw
// needs lib/matrix_units/tile: copy_down, put_down
// needs moe/expert_gemm_matrix: put, w_run, x_place
const FM = 2u;
const FT = 2u;
const ALONG_M = R / (FM * S);           // subgroups
const ALONG_T = TB / (FT * S);
const_assert WG == SUBGROUP * ALONG_M * ALONG_T;

var<workgroup> y_tile: array<f32, S * S * ALONG_M * ALONG_T>;   // a fragment of each subgroup

fn multiply(lane: u32) {
    // Matrix units want control flow that naga can prove uniform: it takes what is loaded like this for uniform.
    let here = workgroupUniformLoad(&bounds);
    if here.x >= here.y {
        return;
    }
    let subgroup = lane / SUBGROUP;
    let m_at = subgroup % ALONG_M * FM * S;
    let t_at = subgroup / ALONG_M * FT * S;
    var c00 = Sums(); var c10 = Sums();
    var c01 = Sums(); var c11 = Sums();
    var raw: array<Raw, W_LOADS>;
    var fours: array<vec4<f16>, X_LOADS>;
    for (var n = 0u; n < W_LOADS; n++) {
        raw[n] = run_raw(w_run(n * WG + lane, here.x));
    }
    for (var n = 0u; n < X_LOADS; n++) {
        fours[n] = x[x_place(n * WG + lane, here.x)];
    }
    for (var at = here.x; at < here.y; at++) {
        for (var n = 0u; n < W_LOADS; n++) {
            put_down(raw[n], at, n * WG + lane);
        }
        for (var n = 0u; n < X_LOADS; n++) {
            copy_down(fours[n], n * WG + lane);
        }
        workgroupBarrier();
        let next = min(at + 1u, here.y - 1u);
        for (var n = 0u; n < W_LOADS; n++) {
            raw[n] = run_raw(w_run(n * WG + lane, next));
        }
        for (var n = 0u; n < X_LOADS; n++) {
            fours[n] = x[x_place(n * WG + lane, next)];
        }
        for (var k = 0u; k < C4; k += S / 4u) {
            let a0 = coopLoadT<Left>(&w_tile[m_at * STRIDE + k], STRIDE);
            let a1 = coopLoadT<Left>(&w_tile[(m_at + S) * STRIDE + k], STRIDE);
            let b0 = coopLoad<Right>(&x_tile[t_at * STRIDE + k], STRIDE);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c10 = coopMultiplyAdd(a1, b0, c10);
            let b1 = coopLoad<Right>(&x_tile[(t_at + S) * STRIDE + k], STRIDE);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c11 = coopMultiplyAdd(a1, b1, c11);
        }
        workgroupBarrier();
    }
    let place = subgroup * S * S;
    coopStore(c00, &y_tile[place], S);
    put_fragment(m_at + 0u * S, t_at + 0u * S, place, lane % SUBGROUP);
    coopStore(c10, &y_tile[place], S);
    put_fragment(m_at + 1u * S, t_at + 0u * S, place, lane % SUBGROUP);
    coopStore(c01, &y_tile[place], S);
    put_fragment(m_at + 0u * S, t_at + 1u * S, place, lane % SUBGROUP);
    coopStore(c11, &y_tile[place], S);
    put_fragment(m_at + 1u * S, t_at + 1u * S, place, lane % SUBGROUP);
}

// The fragment at (m, t) of a tile, from workgroup memory, where it is [t, m].
fn put_fragment(m: u32, t: u32, place: u32, lane: u32) {
    workgroupBarrier();
    for (var e = lane * PER_OUT; e < S * S; e += SUBGROUP * PER_OUT) {
        put(m + e % S, t + e / S, y_tile[place + e], y_tile[place + e + PER_OUT - 1u]);
    }
    workgroupBarrier();
}
