// The sums of a tile, by subgroups that have 4 x 4 fragments of S x S each; what is multiplied next is on its way meanwhile
// needs format: run_raw
// needs lib/matrix_units/tile: copy_down, put_down
// needs linear/gemm_matrix: put, w_run, x_place
const FM = 4u;
const FT = 4u;
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
    var c00 = Sums(); var c10 = Sums(); var c20 = Sums(); var c30 = Sums();
    var c01 = Sums(); var c11 = Sums(); var c21 = Sums(); var c31 = Sums();
    var c02 = Sums(); var c12 = Sums(); var c22 = Sums(); var c32 = Sums();
    var c03 = Sums(); var c13 = Sums(); var c23 = Sums(); var c33 = Sums();
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
            let a2 = coopLoadT<Left>(&w_tile[(m_at + 2u * S) * STRIDE + k], STRIDE);
            let a3 = coopLoadT<Left>(&w_tile[(m_at + 3u * S) * STRIDE + k], STRIDE);
            let b0 = coopLoad<Right>(&x_tile[t_at * STRIDE + k], STRIDE);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c20 = coopMultiplyAdd(a2, b0, c20);
            c30 = coopMultiplyAdd(a3, b0, c30);
            let b1 = coopLoad<Right>(&x_tile[(t_at + S) * STRIDE + k], STRIDE);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c11 = coopMultiplyAdd(a1, b1, c11);
            c21 = coopMultiplyAdd(a2, b1, c21);
            c31 = coopMultiplyAdd(a3, b1, c31);
            let b2 = coopLoad<Right>(&x_tile[(t_at + 2u * S) * STRIDE + k], STRIDE);
            c02 = coopMultiplyAdd(a0, b2, c02);
            c12 = coopMultiplyAdd(a1, b2, c12);
            c22 = coopMultiplyAdd(a2, b2, c22);
            c32 = coopMultiplyAdd(a3, b2, c32);
            let b3 = coopLoad<Right>(&x_tile[(t_at + 3u * S) * STRIDE + k], STRIDE);
            c03 = coopMultiplyAdd(a0, b3, c03);
            c13 = coopMultiplyAdd(a1, b3, c13);
            c23 = coopMultiplyAdd(a2, b3, c23);
            c33 = coopMultiplyAdd(a3, b3, c33);
        }
        workgroupBarrier();
    }
    let place = subgroup * S * S;
    coopStore(c00, &y_tile[place], S);
    put_fragment(m_at + 0u * S, t_at + 0u * S, place, lane % SUBGROUP);
    coopStore(c10, &y_tile[place], S);
    put_fragment(m_at + 1u * S, t_at + 0u * S, place, lane % SUBGROUP);
    coopStore(c20, &y_tile[place], S);
    put_fragment(m_at + 2u * S, t_at + 0u * S, place, lane % SUBGROUP);
    coopStore(c30, &y_tile[place], S);
    put_fragment(m_at + 3u * S, t_at + 0u * S, place, lane % SUBGROUP);
    coopStore(c01, &y_tile[place], S);
    put_fragment(m_at + 0u * S, t_at + 1u * S, place, lane % SUBGROUP);
    coopStore(c11, &y_tile[place], S);
    put_fragment(m_at + 1u * S, t_at + 1u * S, place, lane % SUBGROUP);
    coopStore(c21, &y_tile[place], S);
    put_fragment(m_at + 2u * S, t_at + 1u * S, place, lane % SUBGROUP);
    coopStore(c31, &y_tile[place], S);
    put_fragment(m_at + 3u * S, t_at + 1u * S, place, lane % SUBGROUP);
    coopStore(c02, &y_tile[place], S);
    put_fragment(m_at + 0u * S, t_at + 2u * S, place, lane % SUBGROUP);
    coopStore(c12, &y_tile[place], S);
    put_fragment(m_at + 1u * S, t_at + 2u * S, place, lane % SUBGROUP);
    coopStore(c22, &y_tile[place], S);
    put_fragment(m_at + 2u * S, t_at + 2u * S, place, lane % SUBGROUP);
    coopStore(c32, &y_tile[place], S);
    put_fragment(m_at + 3u * S, t_at + 2u * S, place, lane % SUBGROUP);
    coopStore(c03, &y_tile[place], S);
    put_fragment(m_at + 0u * S, t_at + 3u * S, place, lane % SUBGROUP);
    coopStore(c13, &y_tile[place], S);
    put_fragment(m_at + 1u * S, t_at + 3u * S, place, lane % SUBGROUP);
    coopStore(c23, &y_tile[place], S);
    put_fragment(m_at + 2u * S, t_at + 3u * S, place, lane % SUBGROUP);
    coopStore(c33, &y_tile[place], S);
    put_fragment(m_at + 3u * S, t_at + 3u * S, place, lane % SUBGROUP);
}

// The fragment at (m, t) of a tile, from workgroup memory, where it is [t, m].
fn put_fragment(m: u32, t: u32, place: u32, lane: u32) {
    workgroupBarrier();
    for (var e = lane * PER_OUT; e < S * S; e += SUBGROUP * PER_OUT) {
        put(m + e % S, t + e / S, y_tile[place + e], y_tile[place + e + PER_OUT - 1u]);
    }
    workgroupBarrier();
}
